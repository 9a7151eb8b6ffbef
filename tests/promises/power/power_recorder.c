/* Records, in one order, everything that decides what a power cut leaves and who was told what.
 *
 * Preloaded (LD_PRELOAD) into a process, it appends a record to the file POWER_TRACE for every write, truncation,
 * fsync and change of a name below the folder POWER_ROOT, and for everything that is sent to a socket or written
 * to POWER_ROOT/shown. What is told is recorded before it leaves, and a write after it has returned: an order in
 * which something is told too early is never recorded as a good one. Files that are written through mmap are
 * not followed; SQLite does that to its -shm file alone, which is built anew after a power cut.
 *
 * It can also spoil the disk: POWER_DELAY sleeps so many microseconds in each fsync, POWER_KILL kills the process in
 * the nth fsync of a file with new pages whose name ends with POWER_FILE, and POWER_FAIL makes the nth fail with EIO.
 *
 * Records are read by power_disk.py.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { MADE = 1, WROTE, CUT, SYNCING, SYNCED, SYNC_FAILED, REMOVED, MOVED, MADE_FOLDER, TOLD };

struct head {
    uint32_t kind, thread;
    uint64_t inode;
    int64_t offset;
    uint32_t path_length, data_length;
};

static int trace = -1;
static char root[PATH_MAX], shown[PATH_MAX];
static const char *spoilt; /* how the name of the file ends whose syncs are counted */
static long delay, kill_at, fail_at, syncs;
static volatile int has_new_pages;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("POWER_ROOT"), *file = getenv("POWER_TRACE");
    if (!folder || !file) return;
    snprintf(root, sizeof root, "%s/", folder);
    snprintf(shown, sizeof shown, "%.*s/shown", PATH_MAX - 16, folder);
    spoilt = getenv("POWER_FILE");
    delay = number("POWER_DELAY");
    kill_at = number("POWER_KILL");
    fail_at = number("POWER_FAIL");
    int opened = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    trace = fcntl(opened, F_DUPFD_CLOEXEC, 700);
    close(opened);
}

static void record(enum kind kind, uint64_t inode, int64_t offset, const char *path, const struct iovec *data,
                   int pieces, size_t size) {
    int before = errno;
    struct head head = {kind, syscall(SYS_gettid), inode, offset, path ? strlen(path) : 0, size};
    struct iovec out[2 + pieces];
    out[0] = (struct iovec){&head, sizeof head};
    out[1] = (struct iovec){(void *)path, head.path_length};
    for (int n = 0; n < pieces; n++) {
        out[2 + n] = data[n];
        if (out[2 + n].iov_len > size) out[2 + n].iov_len = size;
        size -= out[2 + n].iov_len;
    }
    pthread_mutex_lock(&lock);
    syscall(SYS_writev, trace, out, 2 + pieces);
    pthread_mutex_unlock(&lock);
    errno = before;
}

static void note(enum kind kind, uint64_t inode, int64_t offset, const char *path, const char *data) {
    struct iovec piece = {(void *)data, data ? strlen(data) : 0};
    record(kind, inode, offset, path, &piece, 1, piece.iov_len);
}

static size_t total(const struct iovec *data, int pieces) {
    size_t size = 0;
    for (int n = 0; n < pieces; n++) size += data[n].iov_len;
    return size;
}

/* The path of a descriptor, if it is a file or folder below the root. */
static int is_ours(int descriptor, char *path, struct stat *found) {
    if (trace < 0) return 0;
    int before = errno;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    int ours = 0;
    if (length > 0) {
        path[length] = 0;
        ours = (!strncmp(path, root, strlen(root)) || !strncmp(path, root, strlen(root) - 1)) &&
               !fstat(descriptor, found);
    }
    errno = before;
    return ours;
}

/* The absolute path of a name, if it is below the root. */
static int is_below(int folder, const char *name, char *path) {
    if (trace < 0 || !name || (folder != AT_FDCWD && name[0] != '/')) return 0;
    char here[PATH_MAX];
    if (name[0] == '/') snprintf(path, PATH_MAX, "%s", name);
    else if (getcwd(here, sizeof here)) snprintf(path, PATH_MAX, "%.2000s/%.2000s", here, name);
    else return 0;
    return !strncmp(path, root, strlen(root));
}

static int is_spoilt(const char *path) {
    size_t length = strlen(path), end = spoilt ? strlen(spoilt) : 0;
    return end && length > end && !strcmp(path + length - end, spoilt);
}

static void told(int descriptor, const struct iovec *data, int pieces) {
    struct stat found;
    int before = errno;
    if (trace >= 0 && !fstat(descriptor, &found)) {
        char path[PATH_MAX];
        int is_shown = is_ours(descriptor, path, &found) && !strcmp(path, shown);
        if (S_ISSOCK(found.st_mode) || is_shown) record(TOLD, 0, 0, NULL, data, pieces, total(data, pieces));
    }
    errno = before;
}

static void wrote(int descriptor, const struct iovec *data, int pieces, ssize_t size, int64_t offset) {
    char path[PATH_MAX];
    struct stat found;
    if (size <= 0 || !is_ours(descriptor, path, &found) || !strcmp(path, shown)) return;
    if (offset < 0) offset = lseek(descriptor, 0, SEEK_CUR) - size;
    record(WROTE, found.st_ino, offset, path, data, pieces, size);
    if (is_spoilt(path) && size >= 512) has_new_pages = 1;
}

/* --- files ---------------------------------------------------------------------------------------------------- */

static int opening(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat found;
    int ours = is_below(folder, name, path), was_there = 1, before = errno;
    if (ours) was_there = !stat(path, &found);
    errno = before;
    int descriptor = syscall(SYS_openat, folder, name, flags, mode);
    if (ours && descriptor >= 0 && !fstat(descriptor, &found)) {
        if (!was_there) note(MADE, found.st_ino, 0, path, NULL);
        else if (flags & O_TRUNC) note(CUT, found.st_ino, 0, path, NULL);
    }
    return descriptor;
}

#define MODE                                     \
    mode_t mode = 0;                             \
    if (flags & (O_CREAT | O_TMPFILE)) {         \
        va_list more;                            \
        va_start(more, flags);                   \
        mode = va_arg(more, int);                \
        va_end(more);                            \
    }

int open(const char *name, int flags, ...) { MODE return opening(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE return opening(AT_FDCWD, name, flags, mode); }
int openat(int folder, const char *name, int flags, ...) { MODE return opening(folder, name, flags, mode); }
int openat64(int folder, const char *name, int flags, ...) { MODE return opening(folder, name, flags, mode); }

ssize_t write(int descriptor, const void *data, size_t size) {
    struct iovec piece = {(void *)data, size};
    told(descriptor, &piece, 1);
    ssize_t done = syscall(SYS_write, descriptor, data, size);
    wrote(descriptor, &piece, 1, done, -1);
    return done;
}

ssize_t writev(int descriptor, const struct iovec *data, int pieces) {
    told(descriptor, data, pieces);
    ssize_t done = syscall(SYS_writev, descriptor, data, pieces);
    wrote(descriptor, data, pieces, done, -1);
    return done;
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
    struct iovec piece = {(void *)data, size};
    ssize_t done = syscall(SYS_pwrite64, descriptor, data, size, offset);
    wrote(descriptor, &piece, 1, done, offset);
    return done;
}
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    return pwrite64(descriptor, data, size, offset);
}

int ftruncate64(int descriptor, off64_t size) {
    char path[PATH_MAX];
    struct stat found;
    int failed = syscall(SYS_ftruncate, descriptor, size);
    if (!failed && is_ours(descriptor, path, &found)) note(CUT, found.st_ino, size, path, NULL);
    return failed;
}
int ftruncate(int descriptor, off_t size) { return ftruncate64(descriptor, size); }

static int syncing(int descriptor, long call) {
    char path[PATH_MAX];
    struct stat found;
    if (!is_ours(descriptor, path, &found)) return syscall(call, descriptor);
    note(SYNCING, found.st_ino, S_ISDIR(found.st_mode), path, NULL);
    long count = 0;
    if (is_spoilt(path) && has_new_pages) {
        has_new_pages = 0;
        count = ++syncs; /* nobody else writes to it meanwhile */
    }
    if (count && count == kill_at) kill(getpid(), SIGKILL);
    if (delay) {
        struct timespec pause = {delay / 1000000, delay % 1000000 * 1000};
        nanosleep(&pause, NULL);
    }
    int failed = count && count == fail_at ? (errno = EIO, -1) : syscall(call, descriptor);
    note(failed ? SYNC_FAILED : SYNCED, found.st_ino, S_ISDIR(found.st_mode), path, NULL);
    return failed;
}
int fsync(int descriptor) { return syncing(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return syncing(descriptor, SYS_fdatasync); }

/* --- names ---------------------------------------------------------------------------------------------------- */

static int removing(int folder, const char *name, int flags) {
    char path[PATH_MAX];
    int failed = syscall(SYS_unlinkat, folder, name, flags);
    if (!failed && is_below(folder, name, path)) note(REMOVED, 0, 0, path, NULL);
    return failed;
}
int unlink(const char *name) { return removing(AT_FDCWD, name, 0); }
int unlinkat(int folder, const char *name, int flags) { return removing(folder, name, flags); }

int renameat(int from, const char *name, int to, const char *target) {
    char path[PATH_MAX], moved[PATH_MAX];
    int failed = syscall(SYS_renameat2, from, name, to, target, 0);
    if (!failed && is_below(from, name, path) && is_below(to, target, moved)) note(MOVED, 0, 0, path, moved);
    return failed;
}
int rename(const char *name, const char *target) { return renameat(AT_FDCWD, name, AT_FDCWD, target); }

int mkdir(const char *name, mode_t mode) {
    char path[PATH_MAX];
    int failed = syscall(SYS_mkdirat, AT_FDCWD, name, mode);
    if (!failed && is_below(AT_FDCWD, name, path)) note(MADE_FOLDER, 0, 0, path, NULL);
    return failed;
}

/* --- sockets -------------------------------------------------------------------------------------------------- */

ssize_t send(int descriptor, const void *data, size_t size, int flags) {
    struct iovec piece = {(void *)data, size};
    told(descriptor, &piece, 1);
    return syscall(SYS_sendto, descriptor, data, size, flags, NULL, 0);
}
ssize_t sendto(int descriptor, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length) {
    struct iovec piece = {(void *)data, size};
    told(descriptor, &piece, 1);
    return syscall(SYS_sendto, descriptor, data, size, flags, to, length);
}
ssize_t sendmsg(int descriptor, const struct msghdr *message, int flags) {
    told(descriptor, message->msg_iov, message->msg_iovlen);
    return syscall(SYS_sendmsg, descriptor, message, flags);
}
