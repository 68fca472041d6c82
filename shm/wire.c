/* SPDX-License-Identifier: Apache-2.0 */

/* wire: names and sentences of the numbers in wire.h. Any thread; never blocks. */

#include "shm/wire.h"

const char *wire_opcode_name(uint32_t opcode)
{
	switch (opcode) {
#define OPCODE(name, value, text)                                                                  \
	case value:                                                                                \
		return #name;
#include "shm/opcodes.def"
#undef OPCODE
	default:
		return "?";
	}
}

const char *wire_status_text(int32_t status)
{
	switch (status) {
	case 0:
		return "success";
#define ERROR_CODE(name, value, text)                                                              \
	case value:                                                                                \
		return text;
#include "shm/errors.def"
#undef ERROR_CODE
	default:
		return "a result that this version does not know";
	}
}
