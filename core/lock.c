/*
 * The advisory lock of fs.h. The file appears with its content at once (written aside, then link(2), which fails when the name is taken, as
 * O_EXCL does). A stale lock is replaced while its inode is held with a record lock, so that of two processes that find the same stale lock
 * only one wins.
 */
#include "core/fs.h"
#include "core/log.h"
#include "core/prog.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

struct owner {
    long pid;
    char host[128], boot[64];
    long long time_s;
    unsigned long long start; /* clock ticks after boot at which the process started: tells a reused pid; 0 = unknown */
    char job[64];             /* of the cluster's scheduler, "-" = none */
    long restart;             /* how often that job was put back into the queue */
};

/* The scheduler's number for this job: the same after a requeue, perhaps on another host. */
static void job_self(struct owner *o)
{
    const char *job = getenv("SLURM_JOB_ID"), *restart = getenv("SLURM_RESTART_COUNT");
    snprintf(o->job, sizeof o->job, "%s", job && *job && !strpbrk(job, " \t\n") ? job : "-");
    o->restart = restart ? atol(restart) : 0;
}

static void boot_id(char out[64])
{
    struct str s = STR_INIT;
    struct err ignored = ERR_INIT;
    if (file_read("/proc/sys/kernel/random/boot_id", 64, &s, &ignored) == 0 && s.len > 1) {
        snprintf(out, 64, "%.*s", (int)strcspn(str_c(&s), "\n"), str_c(&s));
        for (char *p = out; *p; p++)
            if (*p == ' ')
                *p = '_';
    } else
        snprintf(out, 64, "-");
    str_free(&s);
}

struct proc {
    char state; /* letter of /proc/PID/stat, 0 = unknown */
    unsigned long long start;
};

/* Fields 3 and 22 of a stat file of /proc. The name in field 2 may hold blanks and brackets, so count from the last ')'. */
static struct proc proc_stat(const char *path)
{
    struct str s = STR_INIT;
    struct err ignored = ERR_INIT;
    struct proc r = {0};
    if (file_read(path, 8192, &s, &ignored) == 0) {
        const char *p = strrchr(str_c(&s), ')');
        for (int field = 2; p && field < 22; field++) {
            p = strchr(p, ' ');
            p = p ? p + 1 : NULL;
            if (p && field == 2)
                r.state = *p;
        }
        if (p)
            r.start = strtoull(p, NULL, 10);
    }
    str_free(&s);
    return r;
}

static struct proc proc_of(long pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    return proc_stat(path);
}

static bool ended(char state)
{
    return state == 'Z' || state == 'X' || state == 'x';
}

/* All threads have ended and only the parent has not asked yet. (The first thread of a killed process may end before one that is still in a
 * write.) */
static bool zombie(long pid)
{
    char path[400];
    snprintf(path, sizeof path, "/proc/%ld/task", pid);
    DIR *d = opendir(path);
    if (!d)
        return false;
    bool all = true;
    for (struct dirent *f; all && (f = readdir(d));) {
        if (f->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%ld/task/%.255s/stat", pid, f->d_name);
        char state = proc_stat(path).state;
        all = !state || ended(state); /* 0: it went away meanwhile */
    }
    closedir(d);
    return all;
}

static void owner_self(struct owner *o)
{
    struct utsname u;
    *o = (struct owner){.pid = (long)getpid(), .time_s = (long long)time(NULL)};
    o->start = proc_of(o->pid).start;
    snprintf(o->host, sizeof o->host, "%s", uname(&u) == 0 && u.nodename[0] ? u.nodename : "-");
    for (char *p = o->host; *p; p++)
        if ((unsigned char)*p <= ' ')
            *p = '_';
    boot_id(o->boot);
    job_self(o);
}

static bool owner_parse(const char *text, struct owner *o)
{
    *o = (struct owner){.job = "-"};
    return sscanf(text, "%ld %127s %63s %lld %llu %63s %ld", &o->pid, o->host, o->boot, &o->time_s, &o->start, o->job, &o->restart) >= 4 &&
           o->pid > 0;
}

/* Only a process of this host and this boot can be looked up; any other owner counts as alive. But a job that was put back into the queue
 * does not run any more where it ran before. */
static bool owner_gone(const struct owner *o, const struct owner *self)
{
    if (strcmp(o->job, "-") != 0 && !strcmp(o->job, self->job) && o->restart < self->restart)
        return true;
    if (strcmp(o->host, self->host) != 0 || strcmp(o->boot, self->boot) != 0)
        return strcmp(o->host, self->host) == 0 && strcmp(o->boot, "-") != 0 && strcmp(self->boot, "-") != 0;
    if (kill((pid_t)o->pid, 0) != 0 && errno == ESRCH)
        return true;
    struct proc now = proc_of(o->pid);
    return (o->start && now.start && now.start != o->start) || (ended(now.state) && zombie(o->pid));
}

/* 0 = taken, 1 = somebody has it, -1 = error. */
static int try_create(const char *path, const struct owner *self, struct err *e)
{
    char tmp[1100], line[400];
    snprintf(tmp, sizeof tmp, "%s.tmp-%ld", path, self->pid);
    int n = snprintf(line, sizeof line, "%ld %s %s %lld %llu %s %ld\n", self->pid, self->host, self->boot, self->time_s, self->start,
                     self->job, self->restart);
    unlink(tmp);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_sys(e, "create lock", path);
    errno = 0;
    bool ok = write(fd, line, (size_t)n) == n;
    if (!ok && !errno)
        errno = ENOSPC;
    if (close(fd) != 0)
        ok = false;
    int rc = 0;
    if (!ok)
        rc = err_sys(e, "write lock", path);
    else if (link(tmp, path) != 0) {
        int no = errno;
        if (no == EEXIST)
            rc = 1;
        else if (no == EPERM || no == ENOTSUP || no == ENOSYS || no == EMLINK) {
            /* No hard links here: O_EXCL, then the content. */
            fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            if (fd < 0)
                rc = errno == EEXIST ? 1 : err_sys(e, "create lock", path);
            else {
                if (write(fd, line, (size_t)n) != n) {
                    rc = err_sys(e, "write lock", path);
                    unlink(path);
                }
                close(fd);
            }
        } else
            rc = err_sys(e, "create lock", path);
    }
    unlink(tmp);
    return rc;
}

enum { GONE, CHANGED, HELD, FAILED };

static int held(const char *path, const struct owner *o, const struct owner *self, struct err *e)
{
    long long age = self->time_s - o->time_s;
    ERR(e, E_ENV, "'%s' is locked by process %ld on %s since %lld s; wait for it, or delete the lock if that process is gone", path, o->pid,
        o->host, age < 0 ? 0 : age);
    /* A process of this host may be on its way out (killed, but still giving its memory back): worth another look. */
    return strcmp(o->host, self->host) == 0 && o->pid != self->pid ? HELD : FAILED;
}

/* GONE: the stale lock is, try again; CHANGED meanwhile, look again; HELD by another process of this host, FAILED: *e says why. */
static int replace_stale(const char *path, const struct owner *self, struct err *e)
{
    char text[400];
    struct owner o;
    struct stat a, b;
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? CHANGED : (err_sys(e, "open lock", path), FAILED);
    ssize_t n = read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    int rc = FAILED;
    if (!owner_parse(text, &o))
        ERR(e, E_ENV, "'%s' is locked by an unknown owner; delete the lock if no other process works here", path);
    else if (!owner_gone(&o, self))
        rc = held(path, &o, self, e);
    else if (fcntl(fd, F_SETLK, &fl) != 0 || fstat(fd, &a) != 0 || stat(path, &b) != 0 || a.st_ino != b.st_ino || a.st_dev != b.st_dev)
        rc = CHANGED;
    else if (unlink(path) != 0)
        err_sys(e, "remove stale lock", path);
    else {
        log_msg(LOG_WARN, "took over '%s': its owner, process %ld, is gone", path, o.pid);
        rc = GONE;
    }
    close(fd);
    return rc;
}

static int take(const char *path, double patience_s, struct err *e)
{
    struct owner self;
    double until = now_s() + patience_s;
    if (strlen(path) >= 1024)
        return ERR(e, E_USAGE, "lock path '%.60s...' is longer than 1023 bytes", path);
    owner_self(&self);
    for (int changes = 0; changes < 100;) {
        struct err why = ERR_INIT;
        struct timespec nap = {0, 1000000};
        int rc = try_create(path, &self, e);
        if (rc <= 0)
            return rc;
        rc = replace_stale(path, &self, &why);
        if (rc == FAILED || (rc == HELD && now_s() >= until)) {
            *e = why;
            return -1;
        }
        if (rc == HELD)
            nap.tv_nsec = 20000000;
        else
            changes++;
        if (rc != GONE)
            nanosleep(&nap, NULL);
    }
    return ERR(e, E_ENV, "'%s' keeps changing hands; try again", path);
}

int lock_take(const char *path, struct err *e)
{
    return take(path, 1, e);
}

int lock_try(const char *path, struct err *e)
{
    return take(path, 0, e);
}

void lock_drop(const char *path)
{
    unlink(path);
}
