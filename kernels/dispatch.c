/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch: the choice of the provider. Constant, any thread, nothing blocks. */

#include "kernels/dispatch.h"

const struct kernel_provider *kernel_provider(void)
{
	return &kernel_portable;
}
