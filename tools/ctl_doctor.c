/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_doctor: what this host offers the daemon, what is needed, and the command that mends it.
 *
 * Looks at /proc, /sys and the limits of the daemon, or of this process where there is none. One
 * thread; blocks on files alone.
 */

#include "tools/ctl_doctor.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#define TEXT_BYTES 256

static const char *const states[] = {"ok", "note", "mend"};

void doctor_say(struct doctor *d, const char *check, enum doctor_state state, const char *is,
		const char *needed, const char *command)
{
	json_array_append_new(d->checks,
			      json_pack("{s:s, s:s, s:s, s:s?, s:s?}", "check", check, "state",
					states[state], "is", is, "needed", needed, "command",
					state == DOCTOR_OK ? NULL : command));
	d->mend |= state == DOCTOR_MEND;
}

bool doctor_number(const char *path, const char *name, unsigned long long *out)
{
	size_t length = strlen(name);
	char line[TEXT_BYTES];
	bool found = false;
	FILE *f = fopen(path, "re");

	while (f && !found && fgets(line, sizeof(line), f)) {
		char *end, *at = line + length;

		if (strncmp(line, name, length) != 0)
			continue;
		at += strspn(at, ": \t");
		*out = strtoull(at, &end, 10);
		found = end != at;
	}
	if (f)
		fclose(f);
	return found;
}

static bool read_line(const char *path, char out[TEXT_BYTES])
{
	FILE *f = fopen(path, "re");
	bool found = f && fgets(out, TEXT_BYTES, f);

	if (f)
		fclose(f);
	if (found)
		out[strcspn(out, "\n")] = 0;
	return found;
}

/* ---- kernel ---- */

static void check_kernel(struct doctor *d)
{
	struct utsname name;
	unsigned major = 0, minor = 0;
	char is[TEXT_BYTES];

	if (uname(&name) || sscanf(name.release, "%u.%u", &major, &minor) != 2) {
		doctor_say(d, "kernel", DOCTOR_NOTE, "its version is unknown", NULL, NULL);
		return;
	}
	snprintf(is, sizeof(is), "Linux %u.%u", major, minor);
	if (major < 5 || (major == 5 && minor < 14))
		doctor_say(
		    d, "kernel", DOCTOR_MEND, is,
		    "5.14 or later: descriptors of processes, memory that is there before it "
		    "is used",
		    "install a newer kernel");
	else if (major < 6 || (major == 6 && minor < 5))
		doctor_say(d, "kernel", DOCTOR_NOTE, is,
			   "6.5 or later knows a client's process from its socket; on this one "
			   "clients show who they are by one more message",
			   NULL);
	else
		doctor_say(d, "kernel", DOCTOR_OK, is, NULL, NULL);
}

/* ---- locked memory ---- */

/* Of the daemon where it runs: "Max locked memory  SOFT  HARD  bytes". */
static bool daemon_limit(unsigned long pid, unsigned long long *out)
{
	static const char name[] = "Max locked memory";
	char path[64], line[TEXT_BYTES];
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%lu/limits", pid);
	f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof(line), f)) {
		const char *at = line + strlen(name);

		if (strncmp(line, name, strlen(name)) != 0)
			continue;
		at += strspn(at, " ");
		found = true;
		*out = !strncmp(at, "unlimited", 9) ? RLIM_INFINITY : strtoull(at, NULL, 10);
	}
	if (f)
		fclose(f);
	return found;
}

static bool may_lock(unsigned long pid)
{
	char path[64], line[TEXT_BYTES];
	unsigned long long effective = 0;
	FILE *f;

	if (pid)
		snprintf(path, sizeof(path), "/proc/%lu/status", pid);
	else
		snprintf(path, sizeof(path), "/proc/self/status");
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		if (!strncmp(line, "CapEff:", 7))
			effective = strtoull(line + 7, NULL, 16);
	}
	if (f)
		fclose(f);
	return effective >> CAP_IPC_LOCK & 1;
}

static void check_memlock(struct doctor *d)
{
	unsigned long pid = (unsigned long)json_integer_value(json_object_get(d->health, "pid"));
	const char *whose = pid ? "the daemon" : "this shell";
	unsigned long long limit = 0, wanted = doctor_locked_bytes(d);
	struct rlimit mine;
	char is[TEXT_BYTES], size[64];

	if (!(pid && daemon_limit(pid, &limit))) {
		pid = 0;
		whose = "this shell";
		limit = getrlimit(RLIMIT_MEMLOCK, &mine) == 0 ? mine.rlim_cur : 0;
	}
	if (limit == RLIM_INFINITY)
		snprintf(size, sizeof(size), "unlimited");
	else
		ctl_size_text(limit, size, sizeof(size));
	snprintf(is, sizeof(is), "%s for %s, %s the right to lock memory", size, whose,
		 may_lock(pid) ? "with" : "without");
	if (limit == RLIM_INFINITY || may_lock(pid))
		doctor_say(d, "locked memory", DOCTOR_OK, is, NULL, NULL);
	else if (!d->config)
		doctor_say(d, "locked memory", DOCTOR_NOTE, is,
			   "unlimited, or CAP_IPC_LOCK, for a daemon with KV-RAM that is started "
			   "by hand; its unit sets it by itself",
			   "ulimit -l unlimited");
	else if (limit >= wanted)
		doctor_say(d, "locked memory", DOCTOR_OK, is,
			   wanted ? NULL : "nothing: there is no KV-RAM that is to be locked",
			   NULL);
	else
		doctor_say(d, "locked memory", DOCTOR_MEND, is,
			   "unlimited, or CAP_IPC_LOCK, for the daemon: KV-RAM must not move",
			   "systemctl edit kvhostd  # [Service] LimitMEMLOCK=infinity; then "
			   "systemctl restart kvhostd");
}

static void check_transparent(struct doctor *d)
{
	char line[TEXT_BYTES];

	if (!read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", line))
		doctor_say(d, "transparent huge pages", DOCTOR_NOTE,
			   "this kernel has none for shared memory",
			   "they stand in where there are no huge pages", NULL);
	else if (strstr(line, "[deny]"))
		doctor_say(d, "transparent huge pages", DOCTOR_MEND, line,
			   "anything but deny: they stand in where there are no huge pages",
			   "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
	else
		doctor_say(d, "transparent huge pages", DOCTOR_OK, line, NULL, NULL);
}

/* ---- io_uring ---- */

static void check_io_uring(struct doctor *d)
{
	static const char command[] = "sysctl -w kernel.io_uring_disabled=0";
	struct io_uring_params params = {0};
	unsigned long long disabled = 0;
	char is[TEXT_BYTES];
	int fd = (int)syscall(SYS_io_uring_setup, 1, &params);
	int error = errno;

	if (fd >= 0) {
		close(fd);
		doctor_say(d, "io_uring", DOCTOR_OK, "usable", NULL, NULL);
		return;
	}
	(void)doctor_number("/proc/sys/kernel/io_uring_disabled", "", &disabled);
	snprintf(is, sizeof(is), "not usable: %s; kernel.io_uring_disabled is %llu",
		 strerror(error), disabled);
	/* No tier on disk in this version. */
	doctor_say(d, "io_uring", DOCTOR_NOTE, is, "usable, for a tier on disk",
		   disabled ? command : "allow it in the sandbox that this runs in");
}

/* ---- NUMA, devices ---- */

static void check_numa(struct doctor *d)
{
	DIR *folder = opendir("/sys/devices/system/node");
	const struct dirent *entry;
	char is[TEXT_BYTES];
	unsigned n = 0;

	while (folder && (entry = readdir(folder)))
		n += !strncmp(entry->d_name, "node", 4) && entry->d_name[4] >= '0' &&
		     entry->d_name[4] <= '9';
	if (folder)
		closedir(folder);
	snprintf(is, sizeof(is), "%u node%s", n ? n : 1, n > 1 ? "s" : "");
	if (n > 1)
		doctor_say(d, "NUMA", DOCTOR_NOTE, is,
			   "an engine and the memory of its pool on one node",
			   "kv_ram_numa_node in kvhost.json; then systemctl restart kvhostd");
	else
		doctor_say(d, "NUMA", DOCTOR_OK, is, NULL, NULL);
}

static void check_devices(struct doctor *d)
{
	void *driver;

	doctor_say(d, "CPU backend", DOCTOR_OK, "there on every host", NULL, NULL);
	driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
	if (driver) {
		doctor_say(d, "GPU", DOCTOR_NOTE, "libcuda.so.1 is there",
			   "this version serves pools in host memory only", NULL);
		dlclose(driver);
	} else {
		doctor_say(d, "GPU", DOCTOR_OK, "no libcuda.so.1: pools are in host memory", NULL,
			   NULL);
	}
}

/* ---- all ---- */

static void print_text(const struct doctor *d, FILE *out)
{
	json_t *row;
	size_t i;

	json_array_foreach(d->checks, i, row)
	{
		const char *state = json_string_value(json_object_get(row, "state"));
		const char *needed = json_string_value(json_object_get(row, "needed"));
		const char *command = json_string_value(json_object_get(row, "command"));

		fprintf(out, "%-5s %s: %s\n", !strcmp(state, "mend") ? "MEND" : state,
			json_string_value(json_object_get(row, "check")),
			json_string_value(json_object_get(row, "is")));
		if (needed)
			fprintf(out, "        needed: %s\n", needed);
		if (command)
			fprintf(out, "        to mend it: %s\n", command);
	}
	fprintf(out, "%s\n", d->mend ? "there is something to mend" : "all is fine");
}

enum ctl_exit ctl_doctor(const struct ctl_options *options, FILE *out)
{
	struct doctor d = {.checks = json_array(), .meminfo = "/proc/meminfo"};

	doctor_ask(&d, options);
	check_kernel(&d);
	check_memlock(&d);
	doctor_check_ram(&d);
	doctor_check_memory(&d);
	doctor_check_huge_pages(&d);
	check_transparent(&d);
	check_io_uring(&d);
	check_numa(&d);
	check_devices(&d);
	doctor_check_daemon(&d, options);
	if (options->json) {
		json_t *root = json_pack("{s:b, s:O}", "ok", !d.mend, "checks", d.checks);

		json_dumpf(root, out, JSON_INDENT(1));
		fputc('\n', out);
		json_decref(root);
	} else {
		print_text(&d, out);
	}
	json_decref(d.checks);
	json_decref(d.health);
	json_decref(d.config);
	return d.mend ? CTL_UNHEALTHY : CTL_OK;
}
