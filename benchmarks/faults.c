/* Calls that fail when told to: the n-th write, fsync, rename, mmap or read of files below a folder.
   cc -shared -fPIC -O1 -o faults.so faults.c -ldl; LD_PRELOAD=faults.so; then fault_arm from Python. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NONE, WRITE, FSYNC, RENAME, MMAP, READ };

static int armed = NONE, number = 0, calls = 0, code = EIO;
static char root[PATH_MAX] = "";

/* Fail the n-th call of a kind below a folder; n = 0 counts them and fails none. */
void fault_arm(int kind, int n, int error, const char *folder) {
    armed = NONE;
    strncpy(root, folder, sizeof(root) - 1);
    number = n, calls = 0, code = error;
    armed = kind;
}

int fault_calls(void) { return calls; }

static int is_below(const char *path) {
    size_t length = strlen(root);
    return length && strncmp(path, root, length) == 0;
}

static int fails(int kind, const char *path) {
    if (armed != kind || !is_below(path)) return 0;
    calls++;
    if (calls != number) return 0;
    errno = code;
    return 1;
}

static int fails_at(int kind, int descriptor) {
    char link[64], path[PATH_MAX];
    ssize_t length;
    if (armed != kind) return 0;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
    length = readlink(link, path, sizeof(path) - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(kind, path);
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__) = NULL; \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name);

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t)
    return fails_at(WRITE, fd) ? -1 : real(fd, data, size);
}
ssize_t writev(int fd, const struct iovec *data, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int)
    return fails_at(WRITE, fd) ? -1 : real(fd, data, count);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t place) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t)
    return fails_at(WRITE, fd) ? -1 : real(fd, data, size, place);
}
int fsync(int fd) {
    REAL(int, "fsync", int)
    return fails_at(FSYNC, fd) ? -1 : real(fd);
}
int fdatasync(int fd) {
    REAL(int, "fdatasync", int)
    return fails_at(FSYNC, fd) ? -1 : real(fd);
}
int rename(const char *old, const char *new) {
    REAL(int, "rename", const char *, const char *)
    return fails(RENAME, new) ? -1 : real(old, new);
}
int renameat(int a, const char *old, int b, const char *new) {
    REAL(int, "renameat", int, const char *, int, const char *)
    return fails(RENAME, new) ? -1 : real(a, old, b, new);
}
void *mmap(void *where, size_t size, int protection, int flags, int fd, off_t place) {
    REAL(void *, "mmap", void *, size_t, int, int, int, off_t)
    if (fd >= 0 && fails_at(MMAP, fd)) return MAP_FAILED;
    return real(where, size, protection, flags, fd, place);
}
void *mmap64(void *where, size_t size, int protection, int flags, int fd, off64_t place) {
    REAL(void *, "mmap64", void *, size_t, int, int, int, off64_t)
    if (fd >= 0 && fails_at(MMAP, fd)) return MAP_FAILED;
    return real(where, size, protection, flags, fd, place);
}
ssize_t read(int fd, void *data, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t)
    return fails_at(READ, fd) ? -1 : real(fd, data, size);
}
ssize_t pread64(int fd, void *data, size_t size, off64_t place) {
    REAL(ssize_t, "pread64", int, void *, size_t, off64_t)
    return fails_at(READ, fd) ? -1 : real(fd, data, size, place);
}
