/* What people see on stderr (log, progress under a fake clock), what a run remembers (log file, provenance), and interrupts. */
#include "tests/test.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/fs.h"
#include "core/jread.h"
#include "core/live.h"
#include "core/log.h"
#include "core/prog.h"
#include "core/prov.h"

static char dir[512], err_path[600];
static int keep_stderr;

static void capture(void)
{
    fflush(stderr);
    FILE *f = fopen(err_path, "w");
    if (!f || dup2(fileno(f), STDERR_FILENO) < 0)
        abort();
    fclose(f);
}

/* What came to stderr since capture(); stderr is given back. */
static const char *captured(void)
{
    static struct str s;
    fflush(stderr);
    if (dup2(keep_stderr, STDERR_FILENO) < 0)
        abort();
    str_clear(&s);
    CHECK_OK(file_read(err_path, 0, &s, e));
    return str_c(&s);
}

static void logging(void)
{
    char path[1024];
    struct str s = STR_INIT;
    log_tee(path_join(path, dir, "log.txt"));
    capture();
    log_info("plain %d", 1);
    log_warn("careful");
    log_debug("hidden");
    log_msg(LOG_ERROR, "bad");
    for (int i = 0; i < 3; i++)
        log_warn_once("k", "once");
    log_warn_once("k2", "once more");
    log_set_level(LOG_WARN);
    log_info("only in the file");
    CHECK(log_get_level() == LOG_WARN);
    log_set_level(LOG_INFO);
    log_tee(NULL);
    log_info("not in the file");
    CHECK_STR(captured(), "plain 1\nwarning: careful\nerror: bad\nwarning: once\nwarning: once more\nnot in the file\n");
    CHECK_OK(file_read(path, 0, &s, e));
    CHECK(strstr(str_c(&s), "Z plain 1\n") && strstr(str_c(&s), "Z warning: careful\n") && strstr(str_c(&s), "only in the file\n"));
    CHECK(!strstr(str_c(&s), "not in") && !strstr(str_c(&s), "hidden"));
    str_free(&s);
    /* The live line makes room for a message and comes back. */
    capture();
    live_draw("50%");
    log_info("msg");
    live_draw(NULL);
    live_draw(NULL);
    CHECK_STR(captured(), "\r50%\033[K\r\033[Kmsg\n\r50%\033[K\r\033[K");
    capture();
    log_tee("/nonexistent/log");
    CHECK(strstr(captured(), "cannot write the log '/nonexistent/log'"));
}

static double clock_s;
static double fake(void)
{
    return clock_s;
}

static int count(const char *text, char c)
{
    int n = 0;
    for (; *text; text++)
        n += *text == c;
    return n;
}

static void progress(void)
{
    struct prog p;
    prog_fake_clock(fake);
    clock_s = 1000;
    CHECK(now_s() == 1000);
    capture();
    prog_start(&p, "search tiny", "tok", 1000);
    p.tty = false;
    for (int i = 1; i <= 9; i++) {
        clock_s += 1;
        prog_update(&p, 10 * i, "kl 0.0132");
    }
    CHECK(!p.drawn); /* 9 s: nothing yet */
    clock_s += 1;
    prog_update(&p, 100, "kl 0.0132");
    prog_end(&p);
    CHECK_STR(captured(), "search tiny  100/1000  10.0%  kl 0.0132  10.0 tok/s  eta 1m30s\n");

    /* Lines become rarer: 10 s at first, a tenth of the time so far later, 60 s at most. */
    capture();
    clock_s = 0;
    prog_start(&p, "x", "it", 10000);
    p.tty = false;
    for (int i = 1; i <= 10000; i++) {
        clock_s += 1;
        prog_update(&p, i, NULL);
    }
    prog_end(&p);
    int lines = count(captured(), '\n');
    CHECK(lines > 165 && lines < 200);

    /* One slow step does not move the estimate; two updates give none. */
    capture();
    clock_s = 0;
    prog_start(&p, "x", "it", 100);
    p.tty = false;
    clock_s = 20;
    prog_update(&p, 1, NULL);
    for (int i = 2; i <= 20; i++) {
        clock_s += i == 10 ? 500 : 2;
        prog_update(&p, i, NULL);
    }
    clock_s += 2;
    p.t_print = 0;
    prog_update(&p, 21, NULL);
    const char *text = captured();
    CHECK(strncmp(text, "x  1/100  1.0%  20s\n", 20) == 0);
    CHECK(strstr(text, "x  21/100  21.0%  0.50 it/s  eta 2m38s\n"));

    /* On a terminal: after half a second, four times a second, gone at the end, never wider than the window. */
    capture();
    clock_s = 0;
    prog_start(&p, "caf\xc3\xa9", "it", 0);
    p.tty = true;
    for (int i = 1; i <= 100; i++) {
        clock_s = 0.03125 * i; /* exact in binary: 3.125 s in all */
        prog_update(&p, i, "a long remark that would not fit into a window of eighty columns, for sure it would not");
    }
    prog_end(&p);
    prog_end(&p);
    text = captured();
    CHECK_EQ_I(count(text, '\r'), 11 + 1);
    CHECK(strcmp(text + strlen(text) - 4, "\r\033[K") == 0 && count(text, '\n') == 0);
    for (const char *q = strchr(text, '\r'); q; q = strchr(q + 1, '\r'))
        CHECK(strcspn(q + 1, "\033") < 80);

    prog_quiet(true);
    capture();
    prog_start(&p, "x", "it", 10);
    clock_s += 100;
    prog_update(&p, 5, NULL);
    prog_end(&p);
    CHECK_STR(captured(), "");
    prog_quiet(false);
    prog_fake_clock(NULL);
    double a = now_s();
    CHECK(now_s() >= a);
}

static void provenance(void)
{
    char path[1024], prog[] = "dashlab", arg[] = "caf\xc3\xa9";
    char *argv[] = {prog, arg, NULL};
    struct jdoc d;
    const char *s = "";
    int64_t code = -1;
    prov_set_argv(2, argv);
    prov_set("device", "cpu");
    prov_set("device", "cpu, 4 threads"); /* the last one wins */
    CHECK_OK(prov_save(path_join(path, dir, "provenance.json"), 1000000000, 1000000060.5, 130, e));
    CHECK_OK(jdoc_load(&d, path, 0, e));
    CHECK_OK(jget_str(&d, d.root, "", "device", &s, e));
    CHECK_STR(s, "cpu, 4 threads");
    CHECK_OK(jget_str(&d, d.root, "", "start", &s, e));
    CHECK_STR(s, "2001-09-09T01:46:40Z");
    CHECK_OK(jget_i64(&d, d.root, "", "exit", 0, 255, &code, e));
    CHECK_EQ_I(code, 130);
    CHECK_STR(json_string_value(json_array_get(json_object_get(d.root, "argv"), 1)), arg);
    static const char *const keys[] = {"version", "commit", "compiler", "flags", "host", "system"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        CHECK_OK(jget_str(&d, d.root, "", keys[i], &s, e));
    CHECK_EQ_I(json_object_size(json_object_get(d.root, "libraries")), 6);
    CHECK(build_version[0] && build_commit[0]);
    jdoc_free(&d);
    CHECK_ERR(prov_save("/nonexistent/p.json", 1, 2, 0, e), E_INPUT, "/nonexistent/p.json");
}

/* In children, so that the test itself survives. */
static void interrupts(void)
{
    CHECK(!interrupted());
    pid_t pid = fork();
    if (pid == 0) {
        interrupt_install();
        bool before = interrupted();
        raise(SIGTERM);
        raise(SIGTERM);
        bool term = interrupted();
        raise(SIGINT); /* the first: noted */
        if (before || !term || !interrupted())
            _exit(1);
        raise(SIGINT); /* the second: ends the process */
        _exit(2);
    }
    int st = 0;
    CHECK(waitpid(pid, &st, 0) == pid);
    CHECK(WIFSIGNALED(st) && WTERMSIG(st) == SIGINT);
    CHECK(!interrupted());
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/core_term_XXXXXX", tmp ? tmp : "/tmp");
    keep_stderr = dup(STDERR_FILENO);
    if (!mkdtemp(dir) || keep_stderr < 0) {
        printf("cannot make a temporary folder\n");
        return 1;
    }
    snprintf(err_path, sizeof err_path, "%s/stderr", dir);
    logging();
    progress();
    provenance();
    interrupts();
    CHECK_OK(remove_tree(dir, e));
    return test_end();
}
