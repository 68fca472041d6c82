/* SPDX-License-Identifier: Apache-2.0 */
/* The public header as a C++ program sees it: it compiles, and its functions have C names. */
#include <libclient/kvhost.h>

extern "C" int the_header_is_cxx(struct kvhost *host);

int the_header_is_cxx(struct kvhost *host)
{
	struct kvhost_prompt prompt = {};
	struct kvhost_options options = {};
	kvhost_side side = KVHOST_V;

	prompt.max_cached_tokens = KVHOST_NO_LIMIT;
	options.spin_us = static_cast<uint32_t>(side);
	return kvhost_ping(host) + static_cast<int>(prompt.n_tokens + options.window_bytes);
}
