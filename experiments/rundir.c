/* Run directories. */
#include "experiments/rundir.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/hash.h"
#include "core/jread.h"
#include "core/jwrite.h"
#include "core/log.h"
#include "core/prog.h"
#include "core/prov.h"

static const char schema_line[] = "schema 1\n";

void run_key(const char *key_text, char key[65])
{
    struct err ignored = ERR_INIT;
    if (sha256_buf(key_text, strlen(key_text), key, &ignored) != 0)
        BUG("hashing a key failed: %s", ignored.msg);
}

char *run_file(char dst[1024], const struct run *r, const char *rel)
{
    return path_join(dst, r->dir, rel);
}

/* Key of what a directory holds; "" when it holds none. */
static void dir_key(const char *dir, char key[65])
{
    char path[1024];
    struct str s = STR_INIT;
    struct err ignored = ERR_INIT;
    key[0] = 0;
    if (file_exists(path_join(path, dir, "key.txt")) && file_read(path, 1 << 20, &s, &ignored) == 0)
        run_key(str_c(&s), key);
    str_free(&s);
}

enum run_state run_state(const char *dir, const char *key)
{
    char have[65], path[1024];
    if (!dir_exists(dir))
        return RUN_NEW;
    dir_key(dir, have);
    if (!have[0])
        return RUN_NEW;
    if (strcmp(have, key))
        return RUN_OTHER;
    return file_exists(path_join(path, dir, "OUTPUTS")) ? RUN_COMPLETE : RUN_PARTIAL;
}

double run_seconds(const char *dir)
{
    char path[1024];
    struct jdoc d;
    struct err ignored = ERR_INIT;
    double s = 0;
    if (!file_exists(path_join(path, dir, "timing.json")) || jdoc_load(&d, path, 1 << 16, &ignored) != 0)
        return 0;
    if (jget_f64_opt(&d, d.root, "", "seconds", &s, &ignored) != 0)
        s = 0;
    jdoc_free(&d);
    return s;
}

static int write_timing(const struct run *r, struct err *e)
{
    char path[1024];
    struct str s = STR_INIT;
    struct jw w;
    jw_init(&w, &s, true);
    jw_obj(&w);
    jw_kf64(&w, "seconds", r->before_s + (now_s() - r->t0));
    jw_end_obj(&w);
    str_putc(&s, '\n');
    int rc = file_write(run_file(path, r, "timing.json"), str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

int run_readable(const char *dir, struct err *e)
{
    char path[1024];
    struct str s = STR_INIT;
    int rc = 0;
    if (file_exists(path_join(path, dir, "key.txt"))) {
        rc = file_read(path, 1 << 20, &s, e);
        if (rc == 0 && strncmp(str_c(&s), schema_line, sizeof schema_line - 1))
            rc = ERR(e, E_USAGE,
                     "'%s' was made by another version of this program ('%.*s', this one writes 'schema 1'); use another --runs folder or "
                     "remove it", dir, (int)strcspn(str_c(&s), "\n"), str_c(&s));
    }
    str_free(&s);
    return rc;
}

/* Empties a run's folder but for the lock, OUTPUTS first and key.txt last: killed in between, it is never taken for complete or for
 * another run. */
static int clear_run(const char *dir, struct err *e)
{
    struct names names;
    char path[1024];
    TRY(remove_tree(path_join(path, dir, "OUTPUTS"), e));
    TRY(dir_list(dir, &names, e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < names.n; i++)
        if (strcmp(names.v[i], "LOCK") && strcmp(names.v[i], "key.txt"))
            rc = remove_tree(path_join(path, dir, names.v[i]), e);
    names_free(&names);
    return rc ? -1 : remove_tree(path_join(path, dir, "key.txt"), e);
}

/* Under the lock: clears what is not to be kept, makes the folders, writes what names the run. */
static int begin_run(struct run *r, const char *key_text, const char *stage_yaml, bool force, struct err *e)
{
    char path[1024];
    enum run_state st = run_state(r->dir, r->key);
    if (st == RUN_OTHER && !force)
        return ERR(e, E_USAGE, "'%s' holds a run made with other parameters (compare its key.txt); give another folder or --force", r->dir);
    if (st == RUN_OTHER || (st == RUN_COMPLETE && force))
        TRY(clear_run(r->dir, e));
    TRY(mkdir_p(r->out, e));
    TRY(mkdir_p(r->work, e));
    r->before_s = run_seconds(r->dir);
    TRY(file_write(run_file(path, r, "stage.yaml"), stage_yaml, strlen(stage_yaml), e));
    return file_write(run_file(path, r, "key.txt"), key_text, strlen(key_text), e);
}

int run_open(struct run *r, const char *dir, const char *key_text, const char *stage_yaml, bool force, struct err *e)
{
    *r = (struct run){.t0 = now_s(), .t0_unix = (double)time(NULL)};
    if (strlen(dir) > 900)
        return ERR(e, E_USAGE, "run directory path is longer than 900 bytes");
    strcpy(r->dir, dir);
    path_join(r->out, dir, "out");
    path_join(r->work, dir, "work");
    run_key(key_text, r->key);
    char path[1024];
    TRY(run_readable(dir, e));
    if (run_state(dir, r->key) == RUN_OTHER && !force) /* before anything is written there */
        return ERR(e, E_USAGE, "'%s' holds a run made with other parameters (compare its key.txt); give another folder or --force", dir);
    TRY(mkdir_p(dir, e));
    TRY(lock_take(run_file(path, r, "LOCK"), e));
    if (!force && run_state(dir, r->key) == RUN_COMPLETE) {
        r->complete = true;
        lock_drop(run_file(path, r, "LOCK"));
        return 0;
    }
    if (begin_run(r, key_text, stage_yaml, force, e) != 0) {
        lock_drop(run_file(path, r, "LOCK"));
        return -1;
    }
    log_tee(run_file(path, r, "log.txt"));
    return 0;
}

/* Appends "HASH  REL\n" for every regular file under dir/rel, names sorted. */
static int hash_tree(const char *dir, const char *rel, struct str *out, struct err *e)
{
    char path[1024];
    path_join(path, dir, rel);
    if (!dir_exists(path)) {
        char hex[65];
        TRY(sha256_file(path, hex, e));
        str_printf(out, "%s  %s\n", hex, rel);
        return 0;
    }
    struct names names = {0};
    TRY(dir_list(path, &names, e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < names.n; i++) {
        char sub[1024];
        rc = hash_tree(dir, path_join(sub, rel, names.v[i]), out, e);
    }
    names_free(&names);
    return rc;
}

int run_commit(struct run *r, const char *result, struct err *e)
{
    char path[1024];
    struct str s = STR_INIT;
    tmp_sweep(r->dir, true, true); /* the lock is ours: no other writer lives */
    int rc = file_write(run_file(path, r, "RESULT"), result, strlen(result), e) || write_timing(r, e) ||
        prov_save(run_file(path, r, "provenance.json"), r->t0_unix, (double)time(NULL), 0, e) || remove_tree(r->work, e) ||
        hash_tree(r->dir, "RESULT", &s, e) || hash_tree(r->dir, "key.txt", &s, e) || hash_tree(r->dir, "out", &s, e) ||
        hash_tree(r->dir, "stage.yaml", &s, e) || str_ok(&s, "OUTPUTS", e) || file_write(run_file(path, r, "OUTPUTS"), str_c(&s), s.len, e);
    str_free(&s);
    log_tee(NULL);
    lock_drop(run_file(path, r, "LOCK"));
    return rc ? -1 : 0;
}

void run_tidy(const char *dir)
{
    char lock[1024];
    struct err ignored = ERR_INIT;
    if (!file_exists(path_join(lock, dir, "LOCK")) || lock_try(lock, &ignored) != 0)
        return;
    tmp_sweep(dir, true, true);
    lock_drop(lock);
}

static bool is_empty(const char *dir)
{
    struct names names;
    struct err ignored = ERR_INIT;
    if (dir_list(dir, &names, &ignored) != 0)
        return false;
    bool empty = names.n == 0;
    names_free(&names);
    return empty;
}

void run_abort(struct run *r, int exit_code)
{
    char path[1024];
    struct err ignored = ERR_INIT;
    (void)write_timing(r, &ignored);
    (void)prov_save(run_file(path, r, "provenance.json"), r->t0_unix, (double)time(NULL), exit_code, &ignored);
    log_tee(NULL);
    lock_drop(run_file(path, r, "LOCK"));
}

void run_disown(const char *dir)
{
    char path[1024], lock[1024];
    struct err ignored = ERR_INIT;
    if (!is_empty(path_join(path, dir, "out")) || !is_empty(path_join(path, dir, "work")))
        return;
    if (lock_try(path_join(lock, dir, "LOCK"), &ignored) != 0)
        return;
    (void)remove_tree(path_join(path, dir, "key.txt"), &ignored);
    lock_drop(lock);
}

int run_verify(const char *dir, int64_t *n_files, struct err *e)
{
    char path[1024];
    struct str s = STR_INIT;
    *n_files = 0;
    if (!file_exists(path_join(path, dir, "OUTPUTS")))
        return ERR(e, E_INPUT, "'%s' is not a complete run: it has no OUTPUTS file", dir);
    TRY(file_read(path, (size_t)64 << 20, &s, e));
    int rc = 0, line = 0;
    for (char *p = s.p; rc == 0 && p && *p; ) {
        size_t n = strcspn(p, "\n");
        line++;
        char rel[900], file[1024], hex[65];
        if (n < 67 || n - 66 >= sizeof rel || p[64] != ' ' || p[65] != ' ') {
            rc = ERR(e, E_INPUT, "'%s': line %d is not 'sha256  file'", path, line);
            break;
        }
        memcpy(rel, p + 66, n - 66);
        rel[n - 66] = 0;
        if (rel[0] == '/' || strstr(rel, ".."))
            rc = ERR(e, E_INPUT, "'%s': line %d names a file outside the run: '%s'", path, line, rel);
        else if (!file_exists(path_join(file, dir, rel)))
            rc = ERR(e, E_CHECK, "'%s' is missing", file);
        else if ((rc = sha256_file(file, hex, e)) == 0 && memcmp(hex, p, 64))
            rc = ERR(e, E_CHECK, "'%s' differs: sha256 %.16s..., was %.16s...", file, hex, p);
        ++*n_files;
        p += n + (p[n] == '\n');
    }
    if (rc == 0 && line == 0)
        rc = ERR(e, E_INPUT, "'%s/OUTPUTS' is empty: it lists no file", dir);
    str_free(&s);
    return rc;
}
