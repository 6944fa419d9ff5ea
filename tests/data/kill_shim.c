/*
 * Preloaded into dashlab by kill9.sh: the process kills itself with SIGKILL before its KILL_AT-th call that makes something durable
 * (fsync, rename, link, unlink, mkdir). So a test can stop a run at every point between two states of the disk, which a timer hits by
 * luck only. Children (gnuplot) are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static long left = -1;

__attribute__((constructor)) static void arm(void)
{
    const char *at = getenv("KILL_AT");
    if (at && !strcmp(program_invocation_short_name, "dashlab"))
        left = atol(at);
}

static void *next(const char *name)
{
    if (left > 0 && --left == 0)
        kill(getpid(), SIGKILL);
    return dlsym(RTLD_NEXT, name);
}

int fsync(int fd)
{
    int (*f)(int) = (int (*)(int))next("fsync");
    return f(fd);
}
int rename(const char *a, const char *b)
{
    int (*f)(const char *, const char *) = (int (*)(const char *, const char *))next("rename");
    return f(a, b);
}
int link(const char *a, const char *b)
{
    int (*f)(const char *, const char *) = (int (*)(const char *, const char *))next("link");
    return f(a, b);
}
int unlink(const char *a)
{
    int (*f)(const char *) = (int (*)(const char *))next("unlink");
    return f(a);
}
int unlinkat(int fd, const char *a, int flags)
{
    int (*f)(int, const char *, int) = (int (*)(int, const char *, int))next("unlinkat");
    return f(fd, a, flags);
}
int mkdir(const char *a, mode_t mode)
{
    int (*f)(const char *, mode_t) = (int (*)(const char *, mode_t))next("mkdir");
    return f(a, mode);
}
