/* A folder of data sets: out_dir/TASK/validation.jsonl, out_dir/TASK/provenance.json and out_dir/provenance.json. */
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/jread.h"
#include "core/pool.h"
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
enum { HARNESS_SHUFFLE_SEED = 42, HARNESS_NUMPY_SEED = 1234 };

const char *const *ruler_task_names(void)
{
    return names_list;
}

struct job {
    struct ruler_gen_opts opts; /* with what `open` set */
    const struct ruler_gen_opts *o;
    bool compact, harness;
    struct task_set set;
    bool wanted[RULER_MAX_TASKS], whole[RULER_MAX_TASKS]; /* whole: wanted and there already */
    char sha[RULER_MAX_TASKS][65];                        /* of validation.jsonl, of the tasks that are there */
    double share[RULER_MAX_TASKS];                        /* of the length that is used, mean of the samples; negative = not known */
    struct ruler_res res;
    struct str before, after; /* chat template */
    int64_t samples, seed, pre_samples;
    struct mt19937 py, np, cwe_py; /* harness: streams that go through all tasks */
    const char *out_dir;
    struct splits *splits; /* one for each thread */
};

static bool is_qa2(const struct ruler_task *t)
{
    return t->kind == K_QA && t->dataset == 1;
}

/* The question file of a data set: the one given, or the one in data_dir. NULL = neither. */
static const char *question_file(const struct ruler_gen_opts *o, int dataset, char path[1024])
{
    const char *given = dataset ? o->hotpotqa : o->squad;
    if (given)
        return given;
    path_join(path, o->data_dir, dataset ? "hotpotqa.json" : "squad.json");
    return file_exists(path) ? path : NULL;
}

/* Places of n tasks in the harness' build order: multiquery comes before multivalue, own tasks last; all of it may be turned round. */
static void build_order(size_t n, bool reversed, size_t order[RULER_MAX_TASKS])
{
    for (size_t i = 0; i < n; i++)
        order[reversed ? n - 1 - i : i] = i == 6 ? 7 : i == 7 ? 6 : i;
}

/* A name of ours, or the harness' (ruler_vt, ruler_qa_squad). */
static const struct ruler_task *find_task(const struct job *j, const char *name, size_t n)
{
    static const char *const alias[][2] = {
        {"ruler_vt", "vt"}, {"ruler_cwe", "cwe"}, {"ruler_fwe", "fwe"}, {"ruler_qa_squad", "qa_1"}, {"ruler_qa_hotpot", "qa_2"}};
    for (size_t i = 0; i < ARRAY_LEN(alias); i++)
        if (strlen(alias[i][0]) == n && memcmp(alias[i][0], name, n) == 0)
            return task_set_find(&j->set, alias[i][1], strlen(alias[i][1]));
    return task_set_find(&j->set, name, n);
}

/* Which tasks are asked for. All means: those of the task file; without one qa where its file is given, or (not in compact) lies in
 * data_dir. */
static int choose(struct job *j, struct err *e)
{
    const struct ruler_gen_opts *o = j->o;
    char path[1024], near[96];
    for (size_t i = 0; i < j->set.n; i++) {
        const struct ruler_task *t = &j->set.task[i];
        bool have = t->kind != K_QA || (is_qa2(t) ? o->hotpotqa : o->squad) || (!j->compact && question_file(o, t->dataset, path));
        j->wanted[i] = !o->tasks && (o->task_file ? j->set.listed[i] : have && !t->custom);
    }
    for (const char *tasks = o->tasks; tasks;) {
        size_t n = strcspn(tasks, ",");
        const struct ruler_task *t = find_task(j, tasks, n);
        if (!t)
            return ERR(e, E_USAGE, "unknown RULER task '%.*s'%s", (int)MIN(n, 63), tasks, task_set_hint(&j->set, tasks, n, near));
        j->wanted[t - j->set.task] = true;
        tasks = tasks[n] ? tasks + n + 1 : NULL;
    }
    return 0;
}

/* Lengths of a task (NULL: of the call). */
static size_t lengths_of(const struct job *j, const struct ruler_task *t, const int64_t **l)
{
    *l = t && t->n_lengths ? t->lengths : j->o->lengths;
    return t && t->n_lengths ? t->n_lengths : j->o->n_lengths;
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
    if (o->n_lengths > RULER_MAX_LENGTHS)
        return ERR(e, E_USAGE, "RULER: %zu lengths; at most %d", o->n_lengths, RULER_MAX_LENGTHS);
    for (size_t i = 0; i < o->n_lengths; i++)
        if (o->lengths[i] < 1 || o->lengths[i] > 1 << 24)
            return ERR(e, E_USAGE, "RULER: length %" PRId64 "; the range is 1 to %d", o->lengths[i], 1 << 24);
    bool harness = strcmp(o->flavour, "lm-eval") == 0;
    if (harness && ((o->chat && strcmp(o->chat, "base") != 0) || o->remove_newline_tab || o->n_chunks > 1 || o->words))
        return ERR(e, E_USAGE, "RULER flavour 'lm-eval' has no chat templates, no removal of newlines, no chunks and no further words");
    if (o->drawn && strcmp(o->flavour, "compact") != 0)
        return ERR(e, E_USAGE, "RULER flavour '%s' lays samples out as its reference does; layout 'drawn' belongs to 'compact'",
                   o->flavour);
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
    const int64_t *lengths;
    size_t n = lengths_of(j, t, &lengths), order[RULER_MAX_TASKS];
    jw_kstr(w, "benchmark", "RULER");
    jw_kstr(w, "flavour", o->flavour);
    if (t)
        jw_kstr(w, "task", t->name);
    if (t && t->custom) {
        jw_key(w, "parameters");
        jw_obj(w);
        task_put(t, w);
        jw_end_obj(w);
    }
    jw_ki64(w, "seed", o->seed);
    jw_ki64(w, "samples_per_length", o->samples);
    jw_key(w, "lengths");
    jw_arr(w);
    for (size_t i = 0; i < n; i++)
        jw_i64(w, lengths[i]);
    jw_end_arr(w);
    jw_kstr(w, "seed_rule", j->harness ? "one stream through all tasks and lengths" : "block i of a file: lengths[i], seed + i");
    if (o->numpy_seed || j->harness)
        jw_ki64(w, "numpy_seed", o->numpy_seed ? *o->numpy_seed : HARNESS_NUMPY_SEED);
    if (j->harness) {
        jw_kstr(w, "build_order", o->reversed ? "reversed" : "forward");
        jw_key(w, "built");
        jw_arr(w);
        build_order(j->set.n, false, order);
        for (size_t i = 0; i < j->set.n; i++)
            if (j->wanted[order[i]])
                jw_str(w, j->set.task[order[i]].name);
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
    if (o->drawn && (!t || ruler_has_layout(t)))
        jw_kstr(w, "layout", "drawn"); /* `shared` is not said, so that what was made before the choice stays whole */
    if (j->res.words_sha[0] && (!t || t->kind == K_CWE))
        jw_kstr(w, "english_words_sha256", j->res.words_sha);
    if (j->res.qa[0].n_q && (!t || (t->kind == K_QA && !is_qa2(t))))
        jw_kstr(w, "squad_sha256", j->res.qa[0].sha);
    if (j->res.qa[1].n_q && (!t || is_qa2(t)))
        jw_kstr(w, "hotpotqa_sha256", j->res.qa[1].sha);
    if (j->set.sha[0] && j->harness) /* own tasks draw from the stream of the others */
        jw_kstr(w, "task_file_sha256", j->set.sha);
}

/* Names for people, and hashes of what is the same wherever the parameters are; they do not decide whether two data sets are the same. */
static void put_names(const struct job *j, struct jw *w)
{
    const struct ruler_gen_opts *o = j->o;
    jw_kstr(w, "tokenizer", o->tokenizer_name ? o->tokenizer_name : "");
    jw_kstr(w, "wonderwords", o->wonderwords ? o->wonderwords : "2.2.0");
    jw_kstr(w, "wonderwords_adjectives_sha256", j->res.adjs_sha);
    jw_kstr(w, "wonderwords_verbs_sha256", j->res.verbs_sha);
    jw_kstr(w, "punkt_sha256", j->res.punkt_sha);
    jw_kstr(w, "essays", o->essays ? o->essays : "bundled");
    if (j->set.sha[0] && !j->harness)
        jw_kstr(w, "task_file_sha256", j->set.sha);
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

/* Samples of one length: how much of it they use. */
struct filled {
    int64_t length, samples, sum, least, most;
};

static double share_of(const struct filled *f, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)f[i].sum / (double)f[i].samples / (double)f[i].length;
    return sum / (double)n;
}

static int write_task_provenance(const struct job *j, const struct ruler_task *t, const struct filled *f, size_t n, struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    char path[1024], sha[65];
    TRY(params_sha(j, t, sha, e));
    jw_init(&w, &s, true);
    jw_obj(&w);
    put_params(j, t, &w);
    put_names(j, &w);
    jw_key(&w, "fill");
    jw_arr(&w);
    for (size_t i = 0; i < n; i++) {
        jw_obj(&w);
        jw_ki64(&w, "length", f[i].length);
        jw_ki64(&w, "samples", f[i].samples);
        jw_kf64(&w, "mean_tokens", (double)f[i].sum / (double)f[i].samples);
        jw_ki64(&w, "least", f[i].least);
        jw_ki64(&w, "most", f[i].most);
        jw_kf64(&w, "share", share_of(&f[i], 1));
        jw_end_obj(&w);
    }
    jw_end_arr(&w);
    jw_kstr(&w, "params_sha256", sha);
    jw_kstr(&w, "validation_sha256", j->sha[t - j->set.task]);
    jw_end_obj(&w);
    str_putc(&s, '\n');
    task_file(j, t, "provenance.json", path);
    int rc = jw_ok(&w, "provenance.json", e);
    rc = rc ? rc : file_write(path, str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

static bool any_made(const struct job *j)
{
    for (size_t i = 0; i < j->set.n; i++)
        if (j->sha[i][0])
            return true;
    return false;
}

/* out_dir/provenance.json: the data sets that are there and were made with these parameters. */
static int write_provenance(const struct job *j, struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    char path[1024];
    if (!any_made(j))
        return 0;
    jw_init(&w, &s, true);
    jw_obj(&w);
    put_params(j, NULL, &w);
    put_names(j, &w);
    jw_key(&w, "fill"); /* mean share of the length that a task's samples use */
    jw_obj(&w);
    for (size_t i = 0; i < j->set.n; i++)
        if (j->sha[i][0] && j->share[i] >= 0)
            jw_kf64(&w, j->set.task[i].name, j->share[i]);
    jw_end_obj(&w);
    jw_key(&w, "validation_sha256");
    jw_obj(&w);
    for (size_t i = 0; i < j->set.n; i++)
        if (j->sha[i][0])
            jw_kstr(&w, j->set.task[i].name, j->sha[i]);
    jw_end_obj(&w);
    jw_end_obj(&w);
    str_putc(&s, '\n');
    int rc = jw_ok(&w, "provenance.json", e);
    rc = rc ? rc : file_write(path_join(path, j->out_dir, "provenance.json"), str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

/* The share in a task's provenance.json, -1 when it does not say. */
static double share_in(const struct jdoc *d)
{
    const json_t *fill = json_object_get(d->root, "fill");
    double sum = 0;
    size_t n = json_array_size(fill);
    for (size_t i = 0; i < n; i++)
        sum += json_number_value(json_object_get(json_array_get(fill, i), "share"));
    return n ? sum / (double)n : -1;
}

/* What lies in out_dir already: data sets of the same parameters are kept in the list; others are refused, or with `force` forgotten. */
static int look_around(struct job *j, struct err *e)
{
    for (size_t i = 0; i < j->set.n; i++) {
        const struct ruler_task *t = &j->set.task[i];
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
        if (!rc && strcmp(was, sha) == 0) {
            snprintf(j->sha[i], sizeof j->sha[i], "%s", validation);
            j->share[i] = share_in(&d);
        } else if (!rc && !j->o->force)
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

/*
 * Data sets that are whole already are left as they are, so that an interrupted call goes on. The harness' tasks share a stream: all of
 * them or none.
 */
static int leave_whole(struct job *j, struct err *e)
{
    bool all = true;
    for (size_t i = 0; i < j->set.n; i++) {
        char path[1024], sha[65];
        task_file(j, &j->set.task[i], "validation.jsonl", path);
        if (!j->wanted[i])
            continue;
        if (j->sha[i][0] && file_exists(path)) {
            TRY(sha256_file(path, sha, e));
            j->whole[i] = strcmp(sha, j->sha[i]) == 0;
        }
        all = all && j->whole[i];
    }
    for (size_t i = 0; i < j->set.n; i++)
        j->whole[i] = j->whole[i] && (all || !j->harness);
    return 0;
}

/* ---- making ---- */

/* Where the records of a task go as they are made. */
struct sink {
    struct file_out f;
    struct sha256 h;
    struct ruler_timing *timing;
};

static int take(void *ctx, const char *p, size_t n, struct err *e)
{
    struct sink *k = ctx;
    double start = k->timing ? now_s() : 0;
    UNUSED(e); /* a full disk shows when the file is closed */
    out_write(&k->f, p, n);
    sha256_add(&k->h, p, n);
    if (k->timing)
        k->timing->write += now_s() - start;
    return 0;
}

static int make_text(struct job *j, const struct ruler_task *t, struct sink *k, struct splits *splits, struct filled *f, struct err *e)
{
    const struct ruler_gen_opts *o = j->o;
    const int64_t *lengths;
    size_t n = lengths_of(j, t, &lengths);
    struct str out = STR_INIT;
    int rc = 0;
    for (size_t i = 0; !rc && i < n; i++) {
        struct gen g = {.task = t,
                        .res = &j->res,
                        .splits = splits,
                        .timing = k->timing,
                        .counter = o->counter,
                        .compact = j->compact,
                        .harness = j->harness,
                        .flat = o->remove_newline_tab,
                        .drawn = o->drawn,
                        .before = str_c(&j->before),
                        .after = str_c(&j->after),
                        .max_len = lengths[i],
                        .seed = j->harness ? HARNESS_SHUFFLE_SEED : j->seed + (int64_t)i,
                        .np_given = o->numpy_seed != NULL,
                        .np_start = o->numpy_seed ? (uint32_t)*o->numpy_seed : 0,
                        .pre_samples = j->pre_samples,
                        .sink = take,
                        .sink_ctx = k};
        if (j->harness) {
            g.py = j->py;
            g.np = j->np;
            g.cwe_py = j->cwe_py;
        }
        rc = interrupted() ? ERR(e, E_INTERRUPTED, "interrupted while making task '%s'", t->name) : gen_task(&g, j->samples, &out, e);
        if (j->harness) {
            j->py = g.py;
            j->np = g.np;
            j->cwe_py = g.cwe_py;
        }
        f[i] = (struct filled){lengths[i], g.records, g.sum_length, g.least_length, g.most_length};
        if (!rc && !g.records)
            rc = ERR(e, E_CHECK, "task '%s': no sample came out at length %" PRId64, t->name, lengths[i]);
    }
    str_free(&out);
    return rc;
}

/* A whole task. Its file appears at the end or not at all; the folder of one that failed goes again when nothing else is in it. */
static int make_task(struct job *j, const struct ruler_task *t, struct splits *splits, struct ruler_timing *m, struct err *e)
{
    struct filled f[RULER_MAX_LENGTHS];
    const int64_t *lengths;
    struct sink k = {.timing = m};
    size_t n = lengths_of(j, t, &lengths), at = (size_t)(t - j->set.task);
    char dir[1024], path[1024], sha[65];
    double start = now_s(), split = splits->seconds;
    j->sha[at][0] = 0;
    task_file(j, t, "validation.jsonl", path);
    TRY(mkdir_p(path_join(dir, j->out_dir, t->name), e));
    TRY(sha256_init(&k.h, e));
    int rc = out_open(&k.f, path, e);
    if (!rc) {
        rc = make_text(j, t, &k, splits, f, e);
        if (m) {
            m->split += splits->seconds - split;
            m->draw += now_s() - start - m->search - m->tokenise - m->split - m->write;
            m->samples += j->samples * (int64_t)n;
            start = now_s();
        }
        if (rc)
            out_abort(&k.f);
        else
            rc = out_commit(&k.f, e);
    }
    sha256_end(&k.h, sha);
    if (!rc) {
        memcpy(j->sha[at], sha, sizeof sha);
        j->share[at] = share_of(f, n);
        rc = write_task_provenance(j, t, f, n, e);
    }
    if (m)
        m->write += now_s() - start;
    if (rc) {
        j->sha[at][0] = 0;
        remove(dir);
    }
    return rc;
}

/* Tasks that can be made side by side. */
struct item {
    size_t task;
    int rc;
    struct err err;
    struct ruler_timing timing;
};
struct batch {
    struct job *j;
    struct item item[RULER_MAX_TASKS];
    size_t n;
};

static void make_item(void *ctx, int64_t i, int worker)
{
    struct batch *b = ctx;
    struct item *x = &b->item[i];
    x->rc = make_task(b->j, &b->j->set.task[x->task], &b->j->splits[worker], b->j->o->timing ? &x->timing : NULL, &x->err);
}

/* Microseconds that 1000 tokens of a task cost, roughly (measured at 4096 tokens, with Qwen2.5's tokenizer). */
static int64_t weight(const struct ruler_task *t)
{
    switch (t->kind) {
    case K_NIAH:
        return t->stack == S_NEEDLE ? (t->key == T_WORDS ? 80 : 46) : t->stack == S_ESSAY ? 40 : 30;
    case K_VT:
        return 28;
    case K_CWE:
        return 52;
    case K_FWE:
        return 80;
    case K_QA:
        return 47;
    }
    BUG("kind %d of a task", (int)t->kind);
}

/* Tasks in the order in which they are begun: the longest first, so that no thread has one of them left when the others are done. */
static void longest_first(const struct job *j, struct item *v, size_t n)
{
    int64_t cost[RULER_MAX_TASKS];
    for (size_t i = 0; i < n; i++) {
        const struct item x = v[i];
        const int64_t *l;
        size_t n_l = lengths_of(j, &j->set.task[x.task], &l), at = i;
        int64_t c = 0;
        for (size_t k = 0; k < n_l; k++)
            c += l[k] * weight(&j->set.task[x.task]);
        for (; at > 0 && cost[at - 1] < c; at--) {
            cost[at] = cost[at - 1];
            v[at] = v[at - 1];
        }
        cost[at] = c;
        v[at] = x;
    }
}

static void add_timing(struct ruler_timing *t, const struct ruler_timing *more)
{
    t->search += more->search;
    t->draw += more->draw;
    t->split += more->split;
    t->tokenise += more->tokenise;
    t->write += more->write;
    t->samples += more->samples;
    t->tokens += more->tokens;
}

/* A task that cannot fit does not keep the others from being made; all of them are in the message. Where no task came out, the call was
 * wrong (E_USAGE); where some did, they stay (E_CHECK). */
static int results(struct job *j, const struct batch *b, struct err *e)
{
    struct str failed = STR_INIT;
    size_t n_failed = 0, wanted = 0;
    int rc = 0;
    for (size_t k = 0; rc == 0 && k < j->set.n; k++) {
        wanted += j->wanted[k];
        for (size_t i = 0; rc == 0 && i < b->n; i++) {
            const struct item *x = &b->item[i];
            if (x->task != k)
                continue;
            if (j->o->timing)
                add_timing(j->o->timing, &x->timing);
            if (!x->rc)
                continue;
            if (x->err.code != E_CHECK || j->harness) {
                *e = x->err;
                e->code = e->code == E_CHECK ? E_USAGE : e->code;
                rc = -1;
                continue;
            }
            n_failed++;
            str_printf(&failed, "%s%s", failed.len ? "\n" : "", x->err.msg);
        }
    }
    rc = rc ? rc : write_provenance(j, e);
    if (rc == 0 && n_failed && n_failed == wanted)
        rc = wanted == 1 ? ERR(e, E_USAGE, "%s", str_c(&failed)) : ERR(e, E_USAGE, "error: no task could be made:\n%s", str_c(&failed));
    else if (rc == 0 && n_failed)
        rc = ERR(e, E_CHECK, "error: %zu of %zu tasks could not be made, the others are there:\n%s", n_failed, wanted, str_c(&failed));
    str_free(&failed);
    return rc;
}

static int make_all(struct job *j, struct err *e)
{
    size_t order[RULER_MAX_TASKS];
    struct batch *b = calloc(1, sizeof *b);
    int threads = j->o->pool && !j->harness ? pool_threads(j->o->pool) : 1;
    j->splits = calloc((size_t)threads, sizeof *j->splits);
    if (!b || !j->splits) {
        free(b);
        return err_nomem(e, sizeof *b, "data sets");
    }
    b->j = j;
    build_order(j->set.n, j->o->reversed, order);
    for (size_t i = 0; i < j->set.n; i++)
        if (j->wanted[order[i]] && !j->whole[order[i]])
            b->item[b->n++].task = order[i];
    if (!j->harness) /* whose order is part of its data */
        longest_first(j, b->item, b->n);
    if (threads > 1)
        pool_run(j->o->pool, (int64_t)b->n, make_item, b);
    else
        for (size_t i = 0; i < b->n; i++) {
            make_item(b, (int64_t)i, 0);
            if (b->item[i].rc && (b->item[i].err.code != E_CHECK || j->harness))
                break;
        }
    int rc = results(j, b, e);
    for (int i = 0; i < threads; i++) {
        if (j->o->timing)
            j->o->timing->splits += j->splits[i].made;
        splits_free(&j->splits[i]);
    }
    free(j->splits);
    free(b);
    return rc;
}

static int open_counter(void *ctx, struct err *e)
{
    struct job *j = ctx;
    return j->opts.open ? j->opts.open(j->opts.open_ctx, &j->opts, e) : 0;
}

static int load_all(struct job *j, struct err *e)
{
    const struct ruler_gen_opts *o = j->o;
    char path[2][1024];
    struct ruler_sources s = {.data_dir = o->data_dir,
                              .essays = o->essays,
                              .wonderwords = o->wonderwords && strcmp(o->wonderwords, "3.0") == 0 ? "3.0.0" : o->wonderwords,
                              .words = o->words,
                              .also = open_counter,
                              .also_ctx = j,
                              .pool = o->pool};
    for (size_t i = 0; i < j->set.n; i++)
        s.sentences = s.sentences || (o->drawn && j->wanted[i] && ruler_in_essay(&j->set.task[i]));
    for (int k = 0; k < 2; k++) {
        const struct ruler_task *t = NULL;
        for (size_t i = 0; i < j->set.n && !t; i++)
            if (j->wanted[i] && j->set.task[i].kind == K_QA && j->set.task[i].dataset == k)
                t = &j->set.task[i];
        if (!t)
            continue;
        s.qa[k] = question_file(o, k, path[k]);
        if (!s.qa[k])
            return ERR(e, E_INPUT, "task '%s' needs '%s' (%s), which is not bundled; put it there or name it with --%s", t->name, path[k],
                       k ? "hotpot_dev_distractor_v1.json" : "SQuAD's dev-v2.0.json", k ? "hotpotqa" : "squad");
    }
    TRY(ruler_res_load(&j->res, &s, e));
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
    j->opts = *o;
    j->o = &j->opts;
    j->out_dir = out_dir;
    j->compact = strcmp(o->flavour, "compact") == 0;
    j->harness = strcmp(o->flavour, "lm-eval") == 0;
    for (size_t i = 0; i < RULER_MAX_TASKS; i++)
        j->share[i] = -1;
    set_streams(j);
    double start = now_s();
    int rc = o->task_file ? task_set_load(&j->set, o->task_file, o->flavour, e) : task_set_of(&j->set, out_dir, e);
    rc = rc ? rc : choose(j, e);
    rc = rc ? rc : load_all(j, e);
    if (o->timing)
        o->timing->load += now_s() - start;
    rc = rc ? rc : set_cwe_stream(j, e);
    rc = rc ? rc : look_around(j, e);
    char kept[1024];
    bool fresh = o->task_file && !file_exists(path_join(kept, out_dir, TASK_SET_FILE));
    if (!rc && o->task_file)
        rc = mkdir_p(out_dir, e) || task_set_keep(&j->set, out_dir, o->force, e);
    if (!rc && !o->force)
        rc = leave_whole(j, e);
    rc = rc ? rc : make_all(j, e);
    if (rc && !any_made(j)) { /* nothing was made: no trace of it (a folder with something in it stays) */
        if (fresh)
            remove(kept);
        remove(out_dir);
    }
    task_set_free(&j->set);
    ruler_res_free(&j->res);
    str_free(&j->before);
    str_free(&j->after);
    free(j);
    return rc;
}
