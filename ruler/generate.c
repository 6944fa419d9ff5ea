/* A folder of data sets: out_dir/TASK/validation.jsonl and provenance.json. */
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/prov.h"
#include "ruler/gen.h"

static const char *const names_list[] = {"niah_single_1",
                                         "niah_single_2",
                                         "niah_single_3",
                                         "niah_multikey_1",
                                         "niah_multikey_2",
                                         "niah_multikey_3",
                                         "niah_multivalue",
                                         "niah_multiquery",
                                         "vt",
                                         "cwe",
                                         "fwe",
                                         "qa_1",
                                         "qa_2",
                                         NULL};

const char *const *ruler_task_names(void)
{
    return names_list;
}

/* Which tasks a comma list names; wanted[ruler_n_tasks]. */
static int choose(const char *tasks, bool compact, const char *data_dir, bool *wanted, struct err *e)
{
    char path[1024];
    for (size_t i = 0; i < ruler_n_tasks; i++)
        wanted[i] =
            !tasks && (ruler_tasks[i].kind != K_QA || (!compact && file_exists(path_join(path, data_dir, qa_file(&ruler_tasks[i])))));
    while (tasks) {
        size_t n = strcspn(tasks, ",");
        const struct ruler_task *t = ruler_task_find(tasks, n);
        if (!t) {
            char word[64];
            snprintf(word, sizeof word, "%.*s", (int)MIN(n, 63), tasks);
            const char *near = nearest_word(word, names_list, ruler_n_tasks);
            return ERR(e, E_USAGE, "unknown RULER task '%s'%s%s%s", word, near ? "; did you mean '" : "", near ? near : "",
                       near ? "'" : "");
        }
        wanted[t - ruler_tasks] = true;
        tasks = tasks[n] ? tasks + n + 1 : NULL;
    }
    return 0;
}

static int check_opts(const struct ruler_gen_opts *o, struct err *e)
{
    if (!o->flavour || (strcmp(o->flavour, "compact") != 0 && strcmp(o->flavour, "nvidia") != 0))
        return ERR(e, E_USAGE, "RULER flavour '%s': there are 'compact' and 'nvidia'", o->flavour ? o->flavour : "");
    if (o->samples < 1 || o->samples > 1000000)
        return ERR(e, E_USAGE, "RULER: %" PRId64 " samples a task; the range is 1 to 1000000", o->samples);
    if (!o->n_lengths)
        return ERR(e, E_USAGE, "RULER: no length given");
    if (o->seed < 0 || o->seed > INT64_C(0xffffffff) - (int64_t)o->n_lengths)
        return ERR(e, E_USAGE, "RULER: seed %" PRId64 "; the range is 0 to 4294967295", o->seed);
    for (size_t i = 0; i < o->n_lengths; i++)
        if (o->lengths[i] < 1 || o->lengths[i] > 1 << 24)
            return ERR(e, E_USAGE, "RULER: length %" PRId64 "; the range is 1 to %d", o->lengths[i], 1 << 24);
    return 0;
}

static int make_task(const struct ruler_gen_opts *o, struct ruler_res *res, const struct ruler_task *t, const char *out_dir, char sha[65],
                     struct err *e)
{
    struct str out = STR_INIT;
    char dir[1024], path[1024];
    int rc = 0;
    for (size_t i = 0; !rc && i < o->n_lengths; i++) {
        struct gen g = {.task = t,
                        .res = res,
                        .counter = o->counter,
                        .compact = strcmp(o->flavour, "compact") == 0,
                        .max_len = o->lengths[i],
                        .seed = o->seed + (int64_t)i};
        rc = interrupted() ? ERR(e, E_INTERRUPTED, "interrupted while making task '%s'", t->name)
                           : gen_task(&g, o->samples, o->data_dir, &out, e);
    }
    path_join(dir, out_dir, t->name);
    rc = rc ? rc : mkdir_p(dir, e);
    rc = rc ? rc : sha256_buf(str_c(&out), out.len, sha, e);
    rc = rc ? rc : file_write(path_join(path, dir, "validation.jsonl"), str_c(&out), out.len, e);
    str_free(&out);
    return rc;
}

static int write_provenance(const struct ruler_gen_opts *o, const struct ruler_res *res, const bool *wanted, char (*sha)[65],
                            const char *out_dir, struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    char path[1024];
    jw_init(&w, &s, true);
    jw_obj(&w);
    jw_kstr(&w, "benchmark", "RULER");
    jw_kstr(&w, "flavour", o->flavour);
    jw_ki64(&w, "seed", o->seed);
    jw_ki64(&w, "samples_per_length", o->samples);
    jw_key(&w, "lengths");
    jw_arr(&w);
    for (size_t i = 0; i < o->n_lengths; i++)
        jw_i64(&w, o->lengths[i]);
    jw_end_arr(&w);
    jw_kstr(&w, "seed_rule", "block i of a file: lengths[i], seed + i");
    jw_kstr(&w, "tokenizer", o->tokenizer_name ? o->tokenizer_name : "");
    jw_kstr(&w, "tokenizer_sha256", o->tokenizer_sha256 ? o->tokenizer_sha256 : "");
    jw_kstr(&w, "wonderwords", o->wonderwords ? o->wonderwords : "2.2.0");
    jw_kstr(&w, "wonderwords_nouns_sha256", res->nouns_sha);
    jw_kstr(&w, "essays", o->essays ? o->essays : "bundled");
    jw_kstr(&w, "essays_sha256", res->essay_sha);
    jw_key(&w, "validation_sha256");
    jw_obj(&w);
    for (size_t i = 0; i < ruler_n_tasks; i++)
        if (wanted[i])
            jw_kstr(&w, ruler_tasks[i].name, sha[i]);
    jw_end_obj(&w);
    jw_end_obj(&w);
    str_putc(&s, '\n');
    int rc = jw_ok(&w, "provenance.json", e);
    rc = rc ? rc : file_write(path_join(path, out_dir, "provenance.json"), str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

int ruler_gen(const struct ruler_gen_opts *o, const char *out_dir, struct err *e)
{
    bool wanted[RULER_MAX_TASKS] = {false};
    char sha[RULER_MAX_TASKS][65] = {{0}};
    struct ruler_res res = {0};
    TRY(check_opts(o, e));
    TRY(choose(o->tasks, strcmp(o->flavour, "compact") == 0, o->data_dir, wanted, e));
    int rc = ruler_res_load(&res, o->data_dir, o->essays, o->wonderwords, e);
    for (size_t i = 0; !rc && i < ruler_n_tasks; i++)
        if (wanted[i])
            rc = make_task(o, &res, &ruler_tasks[i], out_dir, sha[i], e);
    rc = rc ? rc : write_provenance(o, &res, wanted, sha, out_dir, e);
    ruler_res_free(&res);
    return rc;
}
