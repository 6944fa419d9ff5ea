/* A folder of data sets: out_dir/TASK/validation.jsonl, out_dir/TASK/provenance.json and out_dir/provenance.json. */
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/jread.h"
#include "core/prog.h"
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
/* The harness' build order, as places in ruler_tasks: multiquery comes before multivalue. */
static const size_t harness_order[] = {0, 1, 2, 3, 4, 5, 7, 6, 8, 9, 10, 11, 12};
enum { HARNESS_SHUFFLE_SEED = 42, HARNESS_NUMPY_SEED = 1234 };

const char *const *ruler_task_names(void)
{
    return names_list;
}

struct job {
    const struct ruler_gen_opts *o;
    bool compact, harness;
    bool wanted[RULER_MAX_TASKS];
    char sha[RULER_MAX_TASKS][65]; /* of validation.jsonl, of the tasks that are there */
    struct ruler_res res;
    struct str before, after; /* chat template */
    int64_t samples, seed, pre_samples;
    struct mt19937 py, np, cwe_py; /* harness: streams that go through all tasks */
    const char *out_dir;
};

static bool is_qa2(const struct ruler_task *t)
{
    return strcmp(t->name, "qa_2") == 0;
}

/* The question file of a task: the one given, or the one in data_dir. NULL = neither. */
static const char *question_file(const struct ruler_gen_opts *o, bool qa2, char path[1024])
{
    const char *given = qa2 ? o->hotpotqa : o->squad;
    if (given)
        return given;
    path_join(path, o->data_dir, qa2 ? "hotpotqa.json" : "squad.json");
    return file_exists(path) ? path : NULL;
}

/* A name of ours, or the harness' (ruler_vt, ruler_qa_squad). */
static const struct ruler_task *find_task(const char *name, size_t n)
{
    static const char *const alias[][2] = {
        {"ruler_vt", "vt"}, {"ruler_cwe", "cwe"}, {"ruler_fwe", "fwe"}, {"ruler_qa_squad", "qa_1"}, {"ruler_qa_hotpot", "qa_2"}};
    for (size_t i = 0; i < ARRAY_LEN(alias); i++)
        if (strlen(alias[i][0]) == n && memcmp(alias[i][0], name, n) == 0)
            return ruler_task_find(alias[i][1], strlen(alias[i][1]));
    return ruler_task_find(name, n);
}

/* Which tasks are asked for. All means: qa where its file is given, or (not in compact) lies in data_dir. */
static int choose(struct job *j, struct err *e)
{
    const struct ruler_gen_opts *o = j->o;
    char path[1024];
    for (size_t i = 0; i < ruler_n_tasks; i++) {
        const struct ruler_task *t = &ruler_tasks[i];
        bool have = t->kind != K_QA || (is_qa2(t) ? o->hotpotqa : o->squad) || (!j->compact && question_file(o, is_qa2(t), path));
        j->wanted[i] = !o->tasks && have;
    }
    for (const char *tasks = o->tasks; tasks;) {
        size_t n = strcspn(tasks, ",");
        const struct ruler_task *t = find_task(tasks, n);
        if (!t) {
            char word[64];
            snprintf(word, sizeof word, "%.*s", (int)MIN(n, 63), tasks);
            const char *near = nearest_word(word, names_list, ruler_n_tasks);
            return ERR(e, E_USAGE, "unknown RULER task '%s'%s%s%s", word, near ? "; did you mean '" : "", near ? near : "",
                       near ? "'" : "");
        }
        j->wanted[t - ruler_tasks] = true;
        tasks = tasks[n] ? tasks + n + 1 : NULL;
    }
    return 0;
}

static int check_opts(const struct ruler_gen_opts *o, struct err *e)
{
    static const char *const flavours[] = {"compact", "nvidia", "lm-eval"};
    bool known = false;
    for (size_t i = 0; i < ARRAY_LEN(flavours); i++)
        known |= o->flavour && strcmp(o->flavour, flavours[i]) == 0;
    if (!known)
        return ERR(e, E_USAGE, "RULER flavour '%s': there are 'compact', 'nvidia' and 'lm-eval'", o->flavour ? o->flavour : "");
    if (o->samples < 1 || o->samples > 1000000)
        return ERR(e, E_USAGE, "RULER: %" PRId64 " samples a task; the range is 1 to 1000000", o->samples);
    if (!o->n_lengths)
        return ERR(e, E_USAGE, "RULER: no length given");
    if (o->n_chunks < 0 || o->n_chunks > o->samples || o->chunk < 0 || o->chunk >= MAX(o->n_chunks, 1))
        return ERR(e, E_USAGE,
                   "RULER: chunk %" PRId64 " of %" PRId64 " with %" PRId64 " samples; chunks count from 0 and none may be empty", o->chunk,
                   o->n_chunks, o->samples);
    if (o->seed < 0 || o->seed > INT64_C(0xffffffff) - (int64_t)o->n_lengths - o->chunk)
        return ERR(e, E_USAGE, "RULER: seed %" PRId64 "; the range is 0 to 4294967295", o->seed);
    if (o->numpy_seed && (*o->numpy_seed < 0 || *o->numpy_seed > INT64_C(0xffffffff)))
        return ERR(e, E_USAGE, "RULER: numpy seed %" PRId64 "; the range is 0 to 4294967295", *o->numpy_seed);
    for (size_t i = 0; i < o->n_lengths; i++)
        if (o->lengths[i] < 1 || o->lengths[i] > 1 << 24)
            return ERR(e, E_USAGE, "RULER: length %" PRId64 "; the range is 1 to %d", o->lengths[i], 1 << 24);
    bool harness = strcmp(o->flavour, "lm-eval") == 0;
    if (harness && ((o->chat && strcmp(o->chat, "base") != 0) || o->remove_newline_tab || o->n_chunks > 1 || o->words))
        return ERR(e, E_USAGE, "RULER flavour 'lm-eval' has no chat templates, no removal of newlines, no chunks and no further words");
    if (!harness && o->reversed)
        return ERR(e, E_USAGE, "RULER: a build order belongs to flavour 'lm-eval'; '%s' makes every task from fresh generators",
                   o->flavour);
    return 0;
}

/* ---- provenance ---- */

/* Members that say how a data set came about; t NULL = all of the folder. Paths are left out: hashes say what was read. */
static void put_params(const struct job *j, const struct ruler_task *t, struct jw *w)
{
    const struct ruler_gen_opts *o = j->o;
    jw_kstr(w, "benchmark", "RULER");
    jw_kstr(w, "flavour", o->flavour);
    if (t)
        jw_kstr(w, "task", t->name);
    jw_ki64(w, "seed", o->seed);
    jw_ki64(w, "samples_per_length", o->samples);
    jw_key(w, "lengths");
    jw_arr(w);
    for (size_t i = 0; i < o->n_lengths; i++)
        jw_i64(w, o->lengths[i]);
    jw_end_arr(w);
    jw_kstr(w, "seed_rule", j->harness ? "one stream through all tasks and lengths" : "block i of a file: lengths[i], seed + i");
    if (o->numpy_seed || j->harness)
        jw_ki64(w, "numpy_seed", o->numpy_seed ? *o->numpy_seed : HARNESS_NUMPY_SEED);
    if (j->harness) {
        jw_kstr(w, "build_order", o->reversed ? "reversed" : "forward");
        jw_key(w, "built");
        jw_arr(w);
        for (size_t i = 0; i < ruler_n_tasks; i++)
            if (j->wanted[harness_order[i]])
                jw_str(w, ruler_tasks[harness_order[i]].name);
        jw_end_arr(w);
    }
    if (o->n_chunks > 1) {
        jw_ki64(w, "chunk", o->chunk);
        jw_ki64(w, "chunks", o->n_chunks);
    }
    jw_kstr(w, "chat_template", o->chat ? o->chat : "base");
    jw_kbool(w, "remove_newline_tab", o->remove_newline_tab);
    jw_kstr(w, "tokenizer_sha256", o->tokenizer_sha256 ? o->tokenizer_sha256 : "");
    if (!o->tokenizer_sha256)
        jw_kstr(w, "counter", o->tokenizer_name ? o->tokenizer_name : "");
    jw_kstr(w, "wonderwords_nouns_sha256", j->res.nouns_sha);
    jw_kstr(w, "essays_sha256", j->res.essay_sha);
    if (j->res.words_sha[0] && (!t || t->kind == K_CWE))
        jw_kstr(w, "english_words_sha256", j->res.words_sha);
    if (j->res.qa[0].n_q && (!t || (t->kind == K_QA && !is_qa2(t))))
        jw_kstr(w, "squad_sha256", j->res.qa[0].sha);
    if (j->res.qa[1].n_q && (!t || is_qa2(t)))
        jw_kstr(w, "hotpotqa_sha256", j->res.qa[1].sha);
}

/* Names for people; they do not decide whether two data sets are the same. */
static void put_names(const struct job *j, struct jw *w)
{
    const struct ruler_gen_opts *o = j->o;
    jw_kstr(w, "tokenizer", o->tokenizer_name ? o->tokenizer_name : "");
    jw_kstr(w, "wonderwords", o->wonderwords ? o->wonderwords : "2.2.0");
    jw_kstr(w, "essays", o->essays ? o->essays : "bundled");
    jw_kstr(w, "made_by", build_version);
}

/* sha256 of a task's parameters. The lists of tasks and data sets of other tasks do not enter (but the build order of the harness does). */
static int params_sha(const struct job *j, const struct ruler_task *t, char sha[65], struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    jw_init(&w, &s, false);
    jw_obj(&w);
    put_params(j, t, &w);
    jw_end_obj(&w);
    int rc = jw_ok(&w, "parameters", e);
    rc = rc ? rc : sha256_buf(str_c(&s), s.len, sha, e);
    str_free(&s);
    return rc;
}

static void task_file(const struct job *j, const struct ruler_task *t, const char *file, char path[1024])
{
    char sub[64];
    snprintf(sub, sizeof sub, "%s/%s", t->name, file);
    path_join(path, j->out_dir, sub);
}

static int write_task_provenance(const struct job *j, const struct ruler_task *t, struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    char path[1024], sha[65];
    TRY(params_sha(j, t, sha, e));
    jw_init(&w, &s, true);
    jw_obj(&w);
    put_params(j, t, &w);
    put_names(j, &w);
    jw_kstr(&w, "params_sha256", sha);
    jw_kstr(&w, "validation_sha256", j->sha[t - ruler_tasks]);
    jw_end_obj(&w);
    str_putc(&s, '\n');
    task_file(j, t, "provenance.json", path);
    int rc = jw_ok(&w, "provenance.json", e);
    rc = rc ? rc : file_write(path, str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

/* out_dir/provenance.json: the data sets that are there and were made with these parameters. */
static int write_provenance(const struct job *j, struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    char path[1024];
    bool any = false;
    for (size_t i = 0; i < ruler_n_tasks; i++)
        any |= j->sha[i][0];
    if (!any)
        return 0;
    jw_init(&w, &s, true);
    jw_obj(&w);
    put_params(j, NULL, &w);
    put_names(j, &w);
    jw_key(&w, "validation_sha256");
    jw_obj(&w);
    for (size_t i = 0; i < ruler_n_tasks; i++)
        if (j->sha[i][0])
            jw_kstr(&w, ruler_tasks[i].name, j->sha[i]);
    jw_end_obj(&w);
    jw_end_obj(&w);
    str_putc(&s, '\n');
    int rc = jw_ok(&w, "provenance.json", e);
    rc = rc ? rc : file_write(path_join(path, j->out_dir, "provenance.json"), str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

/* What lies in out_dir already: data sets of the same parameters are kept in the list; others are refused, or with `force` forgotten. */
static int look_around(struct job *j, struct err *e)
{
    for (size_t i = 0; i < ruler_n_tasks; i++) {
        const struct ruler_task *t = &ruler_tasks[i];
        char path[1024], sha[65];
        const char *was, *validation;
        struct jdoc d = {0};
        task_file(j, t, "provenance.json", path);
        if (!file_exists(path))
            continue;
        TRY(params_sha(j, t, sha, e));
        int rc = jdoc_load(&d, path, 1 << 20, e);
        rc = rc ? rc : jget_str(&d, d.root, "", "params_sha256", &was, e);
        rc = rc ? rc : jget_str(&d, d.root, "", "validation_sha256", &validation, e);
        if (!rc && strcmp(was, sha) == 0)
            snprintf(j->sha[i], sizeof j->sha[i], "%s", validation);
        else if (!rc && !j->o->force)
            rc = ERR(e, E_USAGE, "'%s': task '%s' was made with other parameters (%s); use another folder, or --force to replace it",
                     j->out_dir, t->name, path);
        jdoc_free(&d);
        if (rc && !(j->o->force && e->code == E_INPUT))
            return rc;
        if (!j->sha[i][0]) { /* force: other parameters, or unreadable */
            remove(path);
            task_file(j, t, "validation.jsonl", path);
            remove(path);
        }
    }
    return 0;
}

/* ---- making ---- */

static int make_text(struct job *j, const struct ruler_task *t, struct str *out, struct err *e)
{
    const struct ruler_gen_opts *o = j->o;
    int rc = 0;
    for (size_t i = 0; !rc && i < o->n_lengths; i++) {
        struct gen g = {.task = t,
                        .res = &j->res,
                        .timing = o->timing,
                        .counter = o->counter,
                        .compact = j->compact,
                        .harness = j->harness,
                        .flat = o->remove_newline_tab,
                        .before = str_c(&j->before),
                        .after = str_c(&j->after),
                        .max_len = o->lengths[i],
                        .seed = j->harness ? HARNESS_SHUFFLE_SEED : j->seed + (int64_t)i,
                        .np_given = o->numpy_seed != NULL,
                        .np_start = o->numpy_seed ? (uint32_t)*o->numpy_seed : 0,
                        .pre_samples = j->pre_samples,
                        .py = j->py,
                        .np = j->np,
                        .cwe_py = j->cwe_py};
        rc = interrupted() ? ERR(e, E_INTERRUPTED, "interrupted while making task '%s'", t->name) : gen_task(&g, j->samples, out, e);
        j->py = g.py;
        j->np = g.np;
        j->cwe_py = g.cwe_py;
    }
    return rc;
}

/* make_text, with what is neither search nor counting nor splitting booked as drawing. */
static int make_timed(struct job *j, const struct ruler_task *t, struct str *out, struct err *e)
{
    struct ruler_timing *m = j->o->timing;
    if (!m)
        return make_text(j, t, out, e);
    double other = m->search + m->tokenise + j->res.split_s, start = now_s();
    int rc = make_text(j, t, out, e);
    m->draw += now_s() - start - (m->search + m->tokenise + j->res.split_s - other);
    m->samples += j->samples * (int64_t)j->o->n_lengths;
    return rc;
}

static int make_task(struct job *j, const struct ruler_task *t, struct err *e)
{
    struct str out = STR_INIT;
    char dir[1024], path[1024], *sha = j->sha[t - ruler_tasks];
    sha[0] = 0;
    int rc = make_timed(j, t, &out, e);
    double start = now_s();
    rc = rc ? rc : mkdir_p(path_join(dir, j->out_dir, t->name), e);
    rc = rc ? rc : sha256_buf(str_c(&out), out.len, sha, e);
    task_file(j, t, "validation.jsonl", path);
    rc = rc ? rc : file_write(path, str_c(&out), out.len, e);
    rc = rc ? rc : write_task_provenance(j, t, e);
    if (j->o->timing)
        j->o->timing->write += now_s() - start;
    if (rc)
        sha[0] = 0;
    str_free(&out);
    return rc;
}

static int make_all(struct job *j, struct err *e)
{
    struct err failed = ERR_INIT;
    for (size_t i = 0; i < ruler_n_tasks; i++) {
        size_t k = !j->harness ? i : harness_order[j->o->reversed ? ruler_n_tasks - 1 - i : i];
        if (!j->wanted[k])
            continue;
        struct err one = ERR_INIT;
        if (make_task(j, &ruler_tasks[k], &one) == 0)
            continue;
        if (one.code != E_CHECK || j->harness) {
            *e = one;
            return -1;
        }
        size_t n = failed.code ? strlen(failed.msg) : 0;
        if (!n)
            failed = one;
        else
            snprintf(failed.msg + n, sizeof failed.msg - n, "\n%s", one.msg);
    }
    TRY(write_provenance(j, e));
    if (failed.code) {
        *e = failed;
        return -1;
    }
    return 0;
}

static int load_all(struct job *j, struct err *e)
{
    const struct ruler_gen_opts *o = j->o;
    const char *version = o->wonderwords && strcmp(o->wonderwords, "3.0") == 0 ? "3.0.0" : o->wonderwords;
    char path[1024];
    TRY(ruler_res_load(&j->res, o->data_dir, o->essays, version, e));
    if (o->words)
        TRY(ruler_english_load(&j->res, o->words, e));
    for (int k = 0; k < 2; k++) {
        const struct ruler_task *t = ruler_task_find(k ? "qa_2" : "qa_1", 4);
        const char *file = question_file(o, k, path);
        if (!j->wanted[t - ruler_tasks])
            continue;
        if (!file)
            return ERR(e, E_INPUT, "task '%s' needs '%s' (%s), which is not bundled; put it there or name it with --%s", t->name, path,
                       k ? "hotpot_dev_distractor_v1.json" : "SQuAD's dev-v2.0.json", k ? "hotpotqa" : "squad");
        TRY(ruler_qa_load(&j->res, k, file, e));
    }
    if (o->chat)
        TRY(ruler_chat(o->chat, &j->before, &j->after, e));
    return str_ok(&j->after, "chat template", e);
}

/* Chunk i of k has n / k samples, the first n mod k chunks one more; its seed is seed + i. */
static void set_streams(struct job *j)
{
    const struct ruler_gen_opts *o = j->o;
    int64_t k = MAX(o->n_chunks, 1), each = o->samples / k, over = o->samples % k;
    j->samples = each + (o->chunk < over);
    j->pre_samples = o->chunk * each + MIN(o->chunk, over);
    j->seed = o->seed + o->chunk;
    py_seed(&j->py, (uint64_t)o->seed);
    np_seed(&j->np, (uint32_t)(o->numpy_seed ? *o->numpy_seed : HARNESS_NUMPY_SEED));
}

/* The harness' cwe shuffles its words once with a generator of its own, which the examples then go on using. */
static int set_cwe_stream(struct job *j, struct err *e)
{
    size_t n = j->res.cwe.n;
    int64_t *v = malloc((n + 1) * sizeof *v);
    if (!v)
        return err_nomem(e, n * sizeof *v, "shuffling words");
    for (size_t i = 0; i < n; i++)
        v[i] = (int64_t)i;
    py_seed(&j->cwe_py, HARNESS_SHUFFLE_SEED);
    py_shuffle(&j->cwe_py, v, n);
    free(v);
    return 0;
}

int ruler_gen(const struct ruler_gen_opts *o, const char *out_dir, struct err *e)
{
    TRY(check_opts(o, e));
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return err_nomem(e, sizeof *j, "a data set");
    j->o = o;
    j->out_dir = out_dir;
    j->compact = strcmp(o->flavour, "compact") == 0;
    j->harness = strcmp(o->flavour, "lm-eval") == 0;
    set_streams(j);
    double start = now_s();
    int rc = choose(j, e);
    rc = rc ? rc : load_all(j, e);
    if (o->timing)
        o->timing->load += now_s() - start;
    rc = rc ? rc : set_cwe_stream(j, e);
    rc = rc ? rc : look_around(j, e);
    rc = rc ? rc : make_all(j, e);
    if (o->timing) {
        o->timing->split += j->res.split_s;
        o->timing->splits += j->res.splits;
    }
    ruler_res_free(&j->res);
    str_free(&j->before);
    str_free(&j->after);
    free(j);
    return rc;
}
