/*
 * The n-th allocation fails, for n = 1, 2, ... until the call succeeds: every failure must be an ordinary E_ENV error, and a call after it
 * must work. The allocator is interposed through glibc's own entry points, which sanitizers replace: there the test is skipped.
 */
#include "tests/test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NO_INTERPOSE 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define NO_INTERPOSE 1
#endif
#endif
#ifndef __GLIBC__
#define NO_INTERPOSE 1
#endif

#ifdef NO_INTERPOSE
int main(void)
{
    return test_skip("the allocator cannot be interposed in this build");
}
#else

#include <errno.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/fs.h"
#include "core/hash.h"
#include "core/jread.h"
#include "core/jwrite.h"
#include "core/pool.h"
#include "core/prov.h"
#include "core/rng.h"
#include "core/yamlx.h"

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static long countdown; /* 0 = off; 1 = the next one fails */
static bool fired;

static bool fails(void)
{
    if (countdown > 0 && --countdown == 0) {
        fired = true;
        errno = ENOMEM;
        return true;
    }
    return false;
}

void *malloc(size_t n)
{
    return fails() ? NULL : __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    return fails() ? NULL : __libc_realloc(p, n);
}
void *aligned_alloc(size_t align, size_t n)
{
    return fails() ? NULL : __libc_memalign(align, n);
}

static char dir[512];

static const char *at(const char *name)
{
    static char buf[1024];
    return path_join(buf, dir, name);
}

static int try_yaml(struct err *e)
{
    static const char text[] = "a: [1, {b: c}]\nd: \"e\"\nf: |\n  text\ng: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n";
    struct arena a;
    struct ydoc d;
    arena_init(&a, 0);
    int rc = ydoc_parse(&d, &a, "m.yaml", text, sizeof text - 1, e);
    arena_free(&a);
    return rc;
}

static int try_json(struct err *e)
{
    static const char text[] = "{\"a\": [1, 2.5, {\"b\": \"caf\xc3\xa9\"}], \"c\": null, \"d\": {\"e\": [[], [], {}]}, \"f\": \"a longer "
                               "text than fits any small buffer\"}";
    struct jdoc d;
    int rc = jdoc_parse(&d, "t.json", text, sizeof text - 1, e);
    jdoc_free(&d);
    return rc;
}

static int try_json_out(struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    jw_init(&w, &s, true);
    jw_obj(&w);
    for (int i = 0; i < 50; i++)
        jw_kf64(&w, "key", i / 7.0);
    jw_end_obj(&w);
    int rc = jw_ok(&w, "report", e);
    CHECK(rc != 0 || s.len == strlen(str_c(&s)));
    str_free(&s);
    return rc;
}

static int try_files(struct err *e)
{
    struct str s = STR_INIT;
    struct names n;
    int rc = mkdir_p(at("d/e"), e);
    if (rc == 0)
        rc = file_write(at("d/x"), "hello", 5, e);
    if (rc == 0)
        rc = file_append(at("d/x"), "more\n", 5, false, e);
    if (rc == 0)
        rc = file_read(at("d/x"), 0, &s, e);
    if (rc == 0)
        rc = dir_list(at("d"), &n, e);
    if (rc == 0) {
        CHECK(n.n == 2 && s.len == 10);
        names_free(&n);
        rc = remove_tree(at("d"), e);
    }
    str_free(&s);
    return rc;
}

static int try_map(struct err *e)
{
    struct file_map m;
    int rc = map_open(&m, "/proc/self/status", e);
    map_close(&m);
    return rc;
}

static int try_hash(struct err *e)
{
    char hex[65];
    TRY(sha256_buf("abc", 3, hex, e));
    CHECK_STR(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    return 0;
}

static int try_lock(struct err *e)
{
    int rc = lock_take(at("LOCK"), e);
    if (rc == 0)
        lock_drop(at("LOCK"));
    return rc;
}

static int try_pool(struct err *e)
{
    struct pool *p = NULL;
    int rc = pool_open(&p, 2, e);
    if (rc == 0)
        pool_close(p);
    return rc;
}

static int try_sample(struct err *e)
{
    struct mt19937 r;
    int64_t v[10];
    py_seed(&r, 1);
    return py_sample(&r, 1000, 10, v) != 0 || py_sample(&r, 20, 10, v) != 0 ? err_nomem(e, 0, "a sample") : 0;
}

static int try_provenance(struct err *e)
{
    return prov_save(at("p.json"), 1, 2, 0, e);
}

static const struct {
    const char *name;
    int (*fn)(struct err *e);
    bool may_succeed; /* an allocation that the call can do without */
} calls[] = {
    {"yaml", try_yaml, false},         {"json", try_json, false},
    {"json out", try_json_out, false}, {"files", try_files, true},
    {"map", try_map, false},           {"hash", try_hash, true},
    {"lock", try_lock, true},          {"pool", try_pool, true},
    {"sample", try_sample, false},     {"provenance", try_provenance, true},
};

int main(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/core_oom_XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir))
        return 1;
    printf("warm up\n"); /* stdio's own buffer */
    for (size_t c = 0; c < ARRAY_LEN(calls); c++) {
        struct err first = ERR_INIT;
        CHECK(calls[c].fn(&first) == 0); /* also: what libraries allocate once */
        long n = 1, failures = 0;
        for (;; n++) {
            struct err got = ERR_INIT;
            fired = false;
            countdown = n;
            int rc = calls[c].fn(&got);
            countdown = 0;
            if (!fired) {
                CHECK(rc == 0);
                break;
            }
            failures += rc != 0;
            if (rc == 0 ? !calls[c].may_succeed : got.code != E_ENV || !got.msg[0]) {
                test_failed++;
                printf("%s, allocation %ld: rc %d, code %d, '%s'\n", calls[c].name, n, rc, got.code, got.msg);
            }
        }
        printf("%-10s %ld allocations, %ld failed calls\n", calls[c].name, n - 1, failures);
        CHECK(n > 1);
    }
    CHECK_OK(remove_tree(dir, e));
    return test_end();
}
#endif
