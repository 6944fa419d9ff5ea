#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/prov.h"

#include <jansson.h>
#include <openssl/crypto.h>
#include <pcre2.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include <utf8proc.h>
#include <yaml.h>
#include <zstd.h>

#include "build_info.h"
#include "core/fs.h"

const char *const build_version = BUILD_VERSION;
const char *const build_commit = BUILD_COMMIT;
const bool build_dirty = BUILD_DIRTY;
const char *const build_compiler = BUILD_COMPILER;
const char *const build_flags = BUILD_FLAGS;

enum { MAX_FACTS = 64 };
/* What this process is, set by main before any thread starts. */
static struct {
    int argc;
    char **argv;
    struct {
        char key[48], value[256];
    } fact[MAX_FACTS];
    size_t n;
} self;

void prov_set_argv(int argc, char **argv)
{
    self.argc = argc;
    self.argv = argv;
}

void prov_set(const char *key, const char *value)
{
    size_t i = 0;
    while (i < self.n && strcmp(self.fact[i].key, key) != 0)
        i++;
    if (i == MAX_FACTS || strlen(key) >= sizeof self.fact[0].key)
        BUG("provenance key '%s' is too long or one of more than %d", key, MAX_FACTS);
    if (i == self.n) {
        snprintf(self.fact[i].key, sizeof self.fact[i].key, "%s", key);
        self.n++;
    }
    snprintf(self.fact[i].value, sizeof self.fact[i].value, "%s", value ? value : "");
}

static void write_libraries(struct jw *w)
{
    char pcre[64] = "";
    pcre2_config(PCRE2_CONFIG_VERSION, pcre); /* at most 24 bytes */
    jw_key(w, "libraries");
    jw_obj(w);
    jw_kstr(w, "jansson", jansson_version_str());
    jw_kstr(w, "libcrypto", OpenSSL_version(OPENSSL_VERSION));
    jw_kstr(w, "libyaml", yaml_get_version_string());
    jw_kstr(w, "libzstd", ZSTD_versionString());
    jw_kstr(w, "pcre2", pcre);
    jw_kstr(w, "utf8proc", utf8proc_version());
    jw_end_obj(w);
}

void prov_write(struct jw *w)
{
    struct utsname u;
    jw_key(w, "argv");
    jw_arr(w);
    for (int i = 0; i < self.argc; i++)
        jw_str(w, self.argv[i]);
    jw_end_arr(w);
    jw_kstr(w, "version", build_version);
    jw_kstr(w, "commit", build_commit);
    jw_kbool(w, "dirty", build_dirty);
    jw_kstr(w, "compiler", build_compiler);
    jw_kstr(w, "flags", build_flags);
    write_libraries(w);
    if (uname(&u) == 0) {
        char system[400];
        snprintf(system, sizeof system, "%.100s %.100s %.100s", u.sysname, u.release, u.machine);
        jw_kstr(w, "host", u.nodename);
        jw_kstr(w, "system", system);
    }
    jw_ki64(w, "cores_online", sysconf(_SC_NPROCESSORS_ONLN));
    for (size_t i = 0; i < self.n; i++)
        jw_kstr(w, self.fact[i].key, self.fact[i].value);
}

static void write_time(struct jw *w, const char *key, double unix_s)
{
    char text[40];
    time_t t = (time_t)unix_s;
    struct tm tm;
    jw_key(w, key);
    if (unix_s > 0 && gmtime_r(&t, &tm) && strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm))
        jw_str(w, text);
    else
        jw_null(w);
}

int prov_save(const char *path, double start_unix_s, double end_unix_s, int exit_code, struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    jw_init(&w, &s, true);
    jw_obj(&w);
    prov_write(&w);
    write_time(&w, "start", start_unix_s);
    write_time(&w, "end", end_unix_s);
    jw_kf64(&w, "seconds", end_unix_s - start_unix_s);
    jw_ki64(&w, "exit", exit_code);
    jw_end_obj(&w);
    str_putc(&s, '\n');
    int rc = jw_ok(&w, path, e);
    if (rc == 0)
        rc = file_write(path, str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

/* ---- interrupts ---- */

/* Lock-free atomics are both async-signal-safe and readable from any thread. */
static atomic_int got_signal;
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "the signal flag must be lock-free");

static void on_signal(int sig)
{
    atomic_store(&got_signal, 1);
    if (sig == SIGINT)
        signal(SIGINT, SIG_DFL); /* the second one ends the process */
}

void interrupt_install(void)
{
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

bool interrupted(void)
{
    return atomic_load(&got_signal) != 0;
}
