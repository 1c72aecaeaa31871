/* A file system that lacks something, or a disk that fails, for LD_PRELOAD.
 *
 * LACKS    any of "locks", "links", "folder-sync", "shared-maps", with commas between
 * DIES_AT  the process is gone before its so manieth step that changes names or puts content on disk
 * FAILS_AT the so manieth write to a file with FAILS_IN in its path fails, and all after it, with errno FAILS_WITH
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int lacks(const char *what) {
    const char *said = getenv("LACKS");
    return said && strstr(said, what);
}

static int failed(int error) {
    errno = error;
    return -1;
}

static void step(void) {
    static long done;
    const char *last = getenv("DIES_AT");
    if (last && ++done == atol(last))
        _exit(137);
}

static int fails(int file) {
    static long done;
    const char *first = getenv("FAILS_AT"), *in = getenv("FAILS_IN");
    char link[64], path[4096];
    if (!first || !in)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return strstr(path, in) && ++done >= atol(first);
}

static int mode_of(int file) {
    struct stat about;
    return fstat(file, &about) ? 0 : about.st_mode;
}

int flock(int file, int how) {
    return lacks("locks") ? failed(ENOSYS) : syscall(SYS_flock, file, how);
}

int linkat(int from, const char *old, int to, const char *new, int flags) {
    step();
    return lacks("links") ? failed(EPERM) : syscall(SYS_linkat, from, old, to, new, flags);
}

int link(const char *old, const char *new) {
    return linkat(AT_FDCWD, old, AT_FDCWD, new, 0);
}

int rename(const char *old, const char *new) {
    step();
    return syscall(SYS_renameat2, AT_FDCWD, old, AT_FDCWD, new, 0);
}

int fsync(int file) {
    step();
    return lacks("folder-sync") && S_ISDIR(mode_of(file)) ? failed(EINVAL) : syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    step();
    return syscall(SYS_fdatasync, file);
}

void *mmap64(void *at, size_t length, int protection, int flags, int file, off64_t offset) {
    if (lacks("shared-maps") && flags & MAP_SHARED && protection & PROT_WRITE && file >= 0 && S_ISREG(mode_of(file))) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, at, length, protection, flags, file, offset);
}

void *mmap(void *at, size_t length, int protection, int flags, int file, off_t offset) {
    return mmap64(at, length, protection, flags, file, offset);
}

static int error_of_disk(void) {
    return failed(atoi(getenv("FAILS_WITH")));
}

ssize_t write(int file, const void *bytes, size_t length) {
    return fails(file) ? error_of_disk() : syscall(SYS_write, file, bytes, length);
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off64_t at) {
    return fails(file) ? error_of_disk() : syscall(SYS_pwrite64, file, bytes, length, at);
}

ssize_t pwrite(int file, const void *bytes, size_t length, off_t at) {
    return pwrite64(file, bytes, length, at);
}
