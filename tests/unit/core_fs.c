/* Files: atomic writing with every way to fail, appending, maps, folders, locks. */
#include "tests/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/log.h"

static char dir[512];

/* dir/name; good until the eighth call after. */
static const char *at(const char *name)
{
    static char buf[8][1024];
    static int k;
    return path_join(buf[k++ & 7], dir, name);
}

static void check_content(const char *path, const char *want)
{
    struct str s = STR_INIT;
    CHECK_OK(file_read(path, 0, &s, e));
    CHECK_STR(str_c(&s), want);
    str_free(&s);
}

static size_t entries(void)
{
    struct names n;
    CHECK_OK(dir_list(dir, &n, e));
    size_t count = n.n;
    names_free(&n);
    return count;
}

static void atomic_writes(void)
{
    struct file_out o;
    CHECK_OK(file_write(at("a"), "one", 3, e));
    check_content(at("a"), "one");
    /* Until commit the old content stands. */
    CHECK_OK(out_open(&o, at("a"), e));
    out_printf(&o, "%s-%d", "two", 2);
    out_write(&o, "!", 1);
    check_content(at("a"), "one");
    CHECK_EQ_I(entries(), 2);
    CHECK_OK(out_commit(&o, e));
    check_content(at("a"), "two-2!");
    CHECK_EQ_I(entries(), 1);
    CHECK_OK(out_open(&o, at("a"), e));
    out_write(&o, "three", 5);
    out_abort(&o);
    out_abort(&o);
    check_content(at("a"), "two-2!");
    CHECK_EQ_I(entries(), 1);
    CHECK_ERR(out_open(&o, at("no/such/x"), e), E_INPUT, "No such file or directory");
    CHECK_ERR(out_open(&o, dir, e), E_USAGE, "it is a folder");
    CHECK_ERR(out_open(&o, "/dev/null", e), E_USAGE, "a device or a pipe");
    char longer[1100];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    CHECK_ERR(out_open(&o, longer, e), E_USAGE, "the limit is 1023");
    CHECK(unlink(at("a")) == 0);
}

/* A full disk at the n-th write: the writer's descriptor is pointed at /dev/full after n bytes went through. */
static void full_disk(void)
{
    static char block[100000];
    memset(block, 'b', sizeof block);
    int full = open("/dev/full", O_WRONLY);
    if (full < 0) {
        printf("note: no /dev/full here; the full disk was not tried\n");
        return;
    }
    CHECK_OK(file_write(at("f"), "old", 3, e));
    for (int good = 0; good < 4; good++) {
        struct file_out o;
        CHECK_OK(out_open(&o, at("f"), e));
        for (int i = 0; i < 4; i++) {
            if (i == good) {
                fflush(o.f);
                CHECK(dup2(full, fileno(o.f)) >= 0);
            }
            out_write(&o, block, i % 2 ? 5 : sizeof block); /* small ones fail at the flush only */
            out_printf(&o, "%d", i);
        }
        CHECK_ERR(out_commit(&o, e), E_ENV, "No space left on device");
        check_content(at("f"), "old");
        CHECK_EQ_I(entries(), 1);
    }
    close(full);
    /* Appending: a link to the full device. */
    CHECK(symlink("/dev/full", at("log")) == 0);
    CHECK_ERR(file_append(at("log"), "x\n", 2, true, e), E_ENV, "No space left on device");
    CHECK(unlink(at("log")) == 0);
    CHECK(unlink(at("f")) == 0);
}

/* A size limit lets a part of a line through: it is taken back. */
static void short_append(void)
{
    struct rlimit keep, small = {10, 10};
    CHECK_OK(file_append(at("m"), "12345\n", 6, true, e));
    getrlimit(RLIMIT_FSIZE, &keep);
    small.rlim_max = keep.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    struct err got = ERR_INIT;
    int rc = file_append(at("m"), "abcdefgh\n", 9, false, &got);
    setrlimit(RLIMIT_FSIZE, &keep); /* before anything prints */
    CHECK(rc == -1 && got.code == E_ENV && strstr(got.msg, "4 of 9 bytes written and taken back"));
    check_content(at("m"), "12345\n");
    CHECK_OK(file_append(at("m"), "6\n", 2, false, e));
    check_content(at("m"), "12345\n6\n");
    CHECK(unlink(at("m")) == 0);
}

static void reading(void)
{
    struct file_map m;
    struct str s = STR_INIT;
    char hex[65], again[65];
    CHECK_OK(file_write(at("e"), "", 0, e));
    CHECK_OK(map_open(&m, at("e"), e));
    CHECK(m.p != NULL && m.len == 0);
    map_close(&m);
    CHECK_OK(file_write(at("e"), "hello", 5, e));
    CHECK_OK(map_open(&m, at("e"), e));
    CHECK(m.mapped && m.len == 5 && memcmp(m.p, "hello", 5) == 0);
    map_close(&m);
    CHECK_OK(map_open(&m, "/proc/self/status", e)); /* size 0, content though */
    CHECK(!m.mapped && m.len > 100);
    map_close(&m);
    CHECK_ERR(map_open(&m, dir, e), E_INPUT, "Is a directory");
    CHECK(m.p == NULL);
    map_close(&m);
    CHECK_ERR(map_open(&m, at("none"), e), E_INPUT, "No such file");
    CHECK_OK(file_read(at("e"), 5, &s, e));
    CHECK_OK(file_read(at("e"), 5, &s, e));
    CHECK_STR(str_c(&s), "hellohello"); /* appended */
    str_free(&s);
    CHECK_ERR(file_read(at("e"), 4, &s, e), E_INPUT, "has 5 bytes, the limit is 4");
    CHECK_ERR(file_read("/proc/self/status", 50, &s, e), E_INPUT, "larger than the limit of 50 bytes");
    str_free(&s);
    CHECK_EQ_I(file_size(at("e")), 5);
    CHECK_EQ_I(file_size(at("none")), -1);
    CHECK_EQ_I(file_size(dir), -1);
    CHECK(file_exists(at("e")) && !file_exists(dir) && dir_exists(dir) && !dir_exists(at("e")));
    /* The hash of a file that changes in place a moment later is not remembered. */
    CHECK_OK(sha256_file(at("e"), hex, e));
    CHECK_STR(hex, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    FILE *f = fopen(at("e"), "r+");
    CHECK(f && fputc('j', f) == 'j' && fclose(f) == 0);
    CHECK_OK(sha256_file(at("e"), again, e));
    CHECK(strcmp(hex, again) != 0);
    /* An old file is, and a change of its time stamp ends that. */
    struct timespec old[2] = {{1000000000, 5}, {1000000000, 5}};
    CHECK(utimensat(AT_FDCWD, at("e"), old, 0) == 0);
    CHECK_OK(sha256_file(at("e"), hex, e));
    CHECK_STR(hex, again);
    f = fopen(at("e"), "r+");
    CHECK(f && fputc('h', f) == 'h' && fclose(f) == 0);
    CHECK_OK(sha256_file(at("e"), hex, e));
    CHECK(strcmp(hex, again) != 0);
    CHECK(unlink(at("e")) == 0);
}

static void folders(void)
{
    char p[1024];
    struct names n;
    CHECK_OK(mkdir_p(at("d/e/f"), e));
    CHECK_OK(mkdir_p(at("d/e/f/"), e));
    CHECK(dir_exists(at("d/e/f")));
    CHECK_OK(file_write(at("d/b"), "x", 1, e));
    CHECK_OK(file_write(at("d/a"), "x", 1, e));
    CHECK_ERR(mkdir_p(at("d/a/q"), e), E_INPUT, "Not a directory");
    CHECK_ERR(mkdir_p(at("d/a"), e), E_INPUT, "Not a directory");
    CHECK_ERR(mkdir_p("", e), E_USAGE, "0 bytes");
    CHECK_OK(dir_list(at("d"), &n, e));
    CHECK(n.n == 3 && !strcmp(n.v[0], "a") && !strcmp(n.v[1], "b") && !strcmp(n.v[2], "e"));
    names_free(&n);
    CHECK_ERR(dir_list(at("none"), &n, e), E_INPUT, "No such file");
    /* A link inside the tree is removed, not followed. */
    CHECK_OK(mkdir_p(at("keep"), e));
    CHECK_OK(file_write(at("keep/x"), "x", 1, e));
    CHECK(symlink(at("keep"), at("d/link")) == 0);
    CHECK_OK(remove_tree(at("d"), e));
    CHECK(!dir_exists(at("d")) && file_exists(at("keep/x")));
    CHECK_OK(remove_tree(at("d"), e)); /* nothing there is fine */
    CHECK_OK(remove_tree(at("keep"), e));
    CHECK_STR(path_join(p, "a", "b"), "a/b");
    CHECK_STR(path_join(p, p, "c"), "a/b/c");
    CHECK_STR(path_join(p, "/", "c"), "/c");
    CHECK_STR(path_join(p, "", "c"), "c");
    CHECK_STR(path_base("x/y/z"), "z");
    CHECK_STR(path_base("z"), "z");
}

static void put_lock(const char *fmt, long pid, const char *host, const char *boot)
{
    char line[400];
    int n = snprintf(line, sizeof line, fmt, pid, host, boot);
    CHECK_OK(file_write(at("LOCK"), line, (size_t)n, e));
}

/* A child that is there until told to go. Its first byte up says that it runs. */
static pid_t sleeper(int down[2])
{
    int up[2];
    char c;
    if (pipe(up) != 0 || pipe(down) != 0)
        abort();
    pid_t child = fork();
    if (child == 0) {
        close(down[1]);
        if (write(up[1], "x", 1) != 1)
            _exit(1);
        while (read(down[0], &c, 1) > 0)
            ;
        _exit(0);
    }
    CHECK(read(up[0], &c, 1) == 1);
    close(up[0]);
    close(up[1]);
    close(down[0]);
    return child;
}

/* A killed owner whose parent has not waited for it yet holds nothing; one that lives does, until it goes. */
static void zombies(const char *host, const char *boot)
{
    int down[2];
    siginfo_t info;
    pid_t child = sleeper(down);
    put_lock("%ld %s %s 1000\n", child, host, boot);
    CHECK_ERR(lock_try(at("LOCK"), e), E_ENV, "is locked by process");
    CHECK_ERR(lock_take(at("LOCK"), e), E_ENV, "is locked by process");
    kill(child, SIGKILL);
    bool taken = false; /* killed this moment: lock_take waits; on a machine with all its cores taken it may take a few of them */
    for (int i = 0; !taken && i < 20; i++) {
        struct err ignored = ERR_INIT;
        taken = lock_take(at("LOCK"), &ignored) == 0;
    }
    CHECK(taken);
    lock_drop(at("LOCK"));
    CHECK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0); /* it is a zombie now, and stays one */
    put_lock("%ld %s %s 1000\n", child, host, boot);
    CHECK_OK(lock_try(at("LOCK"), e));
    lock_drop(at("LOCK"));
    CHECK(kill(child, 0) == 0 && waitpid(child, NULL, 0) == child);
    close(down[1]);
}

/* Tries for the lock, says y or n, and lives until the parent closes its pipe. */
static void racer(const int up[2], const int down[2])
{
    struct err e = ERR_INIT;
    close(down[1]);
    char c = lock_try(at("LOCK"), &e) == 0 ? 'y' : 'n';
    if (write(up[1], &c, 1) != 1)
        _exit(1);
    while (read(down[0], &c, 1) > 0)
        ;
    _exit(0);
}

static void locks(void)
{
    struct str mine = STR_INIT;
    struct utsname u;
    char boot[64] = "-", host[128] = "";
    CHECK_OK(lock_take(at("LOCK"), e));
    CHECK_OK(file_read(at("LOCK"), 0, &mine, e));
    long pid = 0, when = 0;
    CHECK(sscanf(str_c(&mine), "%ld %127s %63s %ld", &pid, host, boot, &when) == 4 && pid == (long)getpid());
    CHECK(uname(&u) == 0 && !strcmp(host, u.nodename));
    CHECK_ERR(lock_take(at("LOCK"), e), E_ENV, "is locked by process"); /* we are alive */
    CHECK_EQ_I(entries(), 1);
    lock_drop(at("LOCK"));
    CHECK_EQ_I(entries(), 0);
    str_free(&mine);

    /* A process that is certainly gone: a child of ours, waited for. */
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    log_set_level(LOG_ERROR); /* the warnings about take-overs are expected */
    put_lock("%ld %s %s 1000\n", child, host, boot);
    CHECK_OK(lock_take(at("LOCK"), e));
    CHECK_ERR(lock_take(at("LOCK"), e), E_ENV, "is locked");
    lock_drop(at("LOCK"));
    put_lock("%ld other-%s %s 1000\n", child, host, boot); /* another host: cannot be known */
    CHECK_ERR(lock_take(at("LOCK"), e), E_ENV, "on other-");
    setenv("SLURM_JOB_ID", "4711", 1); /* a job that was put back into the queue, on its next host */
    put_lock("%ld other-%s %s 1000 1 4711 0\n", child, host, boot);
    CHECK_ERR(lock_take(at("LOCK"), e), E_ENV, "on other-");
    setenv("SLURM_RESTART_COUNT", "1", 1);
    put_lock("%ld other-%s %s 1000 1 4712 0\n", child, host, boot); /* another job */
    CHECK_ERR(lock_take(at("LOCK"), e), E_ENV, "on other-");
    put_lock("%ld other-%s %s 1000 1 4711 0\n", child, host, boot);
    CHECK_OK(lock_take(at("LOCK"), e));
    lock_drop(at("LOCK"));
    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_RESTART_COUNT");
    put_lock("%ld other-%s %s 1000\n", child, host, boot);
    if (strcmp(boot, "-") != 0) {
        put_lock("%ld %s x%s 1000\n", (long)getpid(), host, boot); /* before the last boot */
        CHECK_OK(lock_take(at("LOCK"), e));
        put_lock("%ld %s %s 1000 1\n", (long)getpid(), host, boot); /* our number, but a process that started earlier */
        CHECK_OK(lock_take(at("LOCK"), e));
    }
    CHECK_OK(file_write(at("LOCK"), "garbage", 7, e));
    CHECK_ERR(lock_take(at("LOCK"), e), E_ENV, "unknown owner");
    lock_drop(at("LOCK"));
    CHECK_ERR(lock_take(at("none/LOCK"), e), E_INPUT, "No such file");
    zombies(host, boot);
    CHECK_EQ_I(entries(), 0);

    /* One stale lock, eight processes after it: exactly one gets it. Winners stay alive until told to go, so a second winner is a fault. */
    for (int round = 0; round < 20; round++) {
        int up[2], down[2], winners = 0, answers = 0;
        char c;
        put_lock("%ld %s %s 1000\n", child, host, boot);
        if (pipe(up) != 0 || pipe(down) != 0)
            abort();
        for (int i = 0; i < 8; i++)
            if (fork() == 0)
                racer(up, down);
        close(up[1]);
        close(down[0]);
        for (; answers < 8 && read(up[0], &c, 1) == 1; answers++)
            winners += c == 'y';
        close(down[1]);
        close(up[0]);
        while (wait(NULL) > 0)
            ;
        CHECK_EQ_I(answers, 8);
        CHECK_EQ_I(winners, 1);
        lock_drop(at("LOCK"));
    }
    log_set_level(LOG_INFO);
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/core_fs_XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) {
        printf("cannot make a temporary folder\n");
        return 1;
    }
    atomic_writes();
    full_disk();
    short_append();
    reading();
    folders();
    locks();
    CHECK_EQ_I(entries(), 0);
    CHECK_OK(remove_tree(dir, e));
    return test_end();
}
