/* SPDX-License-Identifier: Apache-2.0 */
/* secret: see secret.h. */
#include "daemon/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/random.h"

static int read_whole(int directory, const char *name, uint8_t *out, size_t bytes)
{
	int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	struct stat st;
	int r = 0;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st))
		r = -errno;
	else if (!S_ISREG(st.st_mode) || (size_t)st.st_size != bytes || (st.st_mode & 077))
		r = -EINVAL;
	else if (read(fd, out, bytes) != (ssize_t)bytes)
		r = -EIO;
	close(fd);
	return r;
}

/* Complete under another name first: a crash leaves no half a secret. */
static int write_new(int directory, const char *name, uint8_t *out, size_t bytes)
{
	int r = random_secret(out, bytes);
	char unfinished[64];
	ssize_t written;
	int fd;

	snprintf(unfinished, sizeof(unfinished), "%s.new", name);

	if (r)
		return r;
	fd = openat(directory, unfinished, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	written = write(fd, out, bytes);
	if (written < 0 || (written == (ssize_t)bytes && fsync(fd)))
		r = -errno;
	else if (written != (ssize_t)bytes)
		r = -ENOSPC;
	if (close(fd) && !r)
		r = -errno;
	if (!r && renameat(directory, unfinished, directory, name))
		r = -errno;
	if (r)
		(void)unlinkat(directory, unfinished, 0);
	return r;
}

int secret_load(const char *directory, const char *name, uint8_t *out, size_t bytes,
		const char **wrong)
{
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r;

	*wrong = "";
	if (fd < 0)
		return -errno;
	*wrong = name;
	r = read_whole(fd, name, out, bytes);
	if (r == -ENOENT)
		r = write_new(fd, name, out, bytes);
	close(fd);
	return r;
}
