/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_CONFIG_SOURCES_H
#define KVHOST_CONFIG_SOURCES_H

/* config_sources: the parts of config_load that look outside. Private to config; may block. */

#include "daemon/config.h"

/* The flags that are no options: --config, --check-config, --help, --version. *file may be NULL. */
int config_read_command_line(int argc, char *const *argv, enum config_action *action,
			     const char **file, char error[CONFIG_ERROR_BYTES]);

/* must_exist false: a file that is not there is an empty one. */
int config_take_file(struct config *c, const char *file, bool must_exist,
		     char error[CONFIG_ERROR_BYTES]);

/* Variables KVHOST_... that neither the daemon nor the library nor a tool reads, a line each. */
void config_print_unknown(char *const *environment, FILE *out);

#endif
