/* results.json and samples_TASK.jsonl as lm-evaluation-harness 0.4.13 lays them out; what is ours stands under the key "dashlab". */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/jwrite.h"
#include "core/prov.h"
#include "lmeval/results.h"

static const char *name_of(const struct lme_result *r)
{
    return r->task ? r->task->name : lme_group_name(r->group);
}

/* ---- samples ---- */

static int hash_str(const struct str *s, char hex[65], struct err *e)
{
    return str_ok(s, "a sample", e) || sha256_buf(str_c(s), s->len, hex, e) ? -1 : 0;
}

static void write_args(struct jw *w, const struct lme_case *c)
{
    jw_key(w, "arguments");
    jw_obj(w);
    for (int r = 0; r < c->n_req; r++) {
        char key[24];
        snprintf(key, sizeof key, "gen_args_%d", r);
        jw_key(w, key);
        jw_obj(w);
        jw_key(w, "arg_0");
        jw_strn(w, str_c(lme_ctx(c, r)), lme_ctx(c, r)->len);
        jw_key(w, "arg_1");
        jw_strn(w, str_c(&c->cont[r]), c->cont[r].len);
        jw_end_obj(w);
    }
    jw_end_obj(w);
}

static void write_resps(struct jw *w, const struct lme_req *req, int n, bool filtered)
{
    jw_key(w, filtered ? "filtered_resps" : "resps");
    jw_arr(w);
    for (int r = 0; r < n; r++) {
        char ll[32];
        fmt_f64(ll, req[r].ll);
        if (!filtered)
            jw_arr(w);
        jw_arr(w);
        jw_str(w, ll);
        jw_str(w, req[r].greedy ? "True" : "False");
        jw_end_arr(w);
        if (!filtered)
            jw_end_arr(w);
    }
    jw_end_arr(w);
}

static int write_sample(struct lme_samples *s, const struct lme_case *c, const char hash[3][65], struct err *e)
{
    struct str line = STR_INIT, target = STR_INIT;
    struct jw w;
    int64_t at = s->set->first[s->at];
    lme_target_text(s->task, c->doc, &target);
    jw_init(&w, &line, false);
    jw_obj(&w);
    jw_ki64(&w, "doc_id", c->id);
    jw_key(&w, "doc");
    lme_doc_write(s->task, c->doc, &w);
    jw_kstr(&w, "target", str_c(&target));
    write_args(&w, c);
    write_resps(&w, s->set->req + at, c->n_req, false);
    write_resps(&w, s->set->req + at, c->n_req, true);
    jw_kstr(&w, "filter", "none");
    jw_key(&w, "metrics");
    jw_arr(&w);
    for (int m = 0; m < LME_N_METRICS; m++)
        if (s->metrics & 1u << m)
            jw_str(&w, lme_metric_names[m]);
    jw_end_arr(&w);
    jw_kstr(&w, "doc_hash", hash[0]);
    jw_kstr(&w, "prompt_hash", hash[1]);
    jw_kstr(&w, "target_hash", hash[2]);
    for (int m = 0; m < LME_N_METRICS; m++) {
        if (!(s->metrics & 1u << m))
            continue;
        if (m == LME_EXACT)
            jw_ki64(&w, lme_metric_names[m], s->score[m][s->at] != 0);
        else
            jw_kf64(&w, lme_metric_names[m], s->score[m][s->at]);
    }
    jw_end_obj(&w);
    str_putc(&line, '\n');
    int rc = jw_ok(&w, "a sample", e) || str_ok(&line, "a sample", e) ? -1 : 0;
    if (rc == 0 && s->out)
        out_write(s->out, str_c(&line), line.len);
    str_free(&line);
    str_free(&target);
    return rc;
}

int lme_sample(void *ctx, const struct lme_case *c, struct err *e)
{
    struct lme_samples *s = ctx;
    struct str doc = STR_INIT, target = STR_INIT;
    char hash[3][65];
    lme_doc_json(s->task, c->doc, true, &doc);
    lme_target_text(s->task, c->doc, &target);
    int rc = hash_str(&doc, hash[0], e) || hash_str(&c->ctx[0], hash[1], e) || hash_str(&target, hash[2], e) ? -1 : 0;
    for (int i = 0; rc == 0 && i < 3; i++)
        sha256_add(&s->hash, hash[i], 64);
    if (rc == 0 && s->out)
        rc = write_sample(s, c, (const char(*)[65])hash, e);
    s->at++;
    str_free(&doc);
    str_free(&target);
    return rc;
}

/* ---- results ---- */

static void write_values(struct jw *w, const struct lme_result *r)
{
    for (int m = 0; m < LME_N_METRICS; m++) {
        char key[48];
        if (!(r->metrics & 1u << m))
            continue;
        snprintf(key, sizeof key, "%s,none", lme_metric_names[m]);
        jw_kf64(w, key, r->v[m].mean);
        snprintf(key, sizeof key, "%s_stderr,none", lme_metric_names[m]);
        if (r->v[m].se < 0)
            jw_kstr(w, key, "N/A");
        else
            jw_kf64(w, key, r->v[m].se);
    }
}

static void write_result(struct jw *w, const struct lme_result *r)
{
    jw_key(w, name_of(r));
    jw_obj(w);
    if (r->task) {
        jw_kstr(w, "name", r->task->name);
        jw_kstr(w, "alias", r->task->alias);
    } else {
        jw_kstr(w, "alias", lme_group_alias(r->group));
        jw_kstr(w, "name", lme_group_name(r->group));
    }
    jw_ki64(w, "sample_len", r->n);
    write_values(w, r);
    if (!r->task) {
        jw_key(w, "sample_count");
        jw_obj(w);
        jw_ki64(w, "acc,none", r->n);
        jw_end_obj(w);
    }
    jw_end_obj(w);
}

/* All entries, or those from `first` on, by name. */
static int sorted(const struct lme_run_result *r, bool groups, bool top, const struct lme_result *out[LME_N_TASKS + LME_N_GROUPS])
{
    int n = 0;
    for (int i = 0; i < (groups ? r->n : r->n_tasks); i++) {
        if (!top && !r->task[i].task && r->task[i].group == LME_N_GROUPS - 1)
            continue;
        int k = n++;
        for (; k > 0 && strcmp(name_of(out[k - 1]), name_of(&r->task[i])) > 0; k--)
            out[k] = out[k - 1];
        out[k] = &r->task[i];
    }
    return n;
}

static void write_subtasks(struct jw *w, const struct lme_run_result *r)
{
    jw_key(w, "group_subtasks");
    jw_obj(w);
    for (int k = -1; k < LME_N_GROUPS - 1; k++) {
        int g = k < 0 ? LME_N_GROUPS - 1 : k;
        bool there = false;
        for (int i = r->n_tasks; i < r->n; i++)
            there |= r->task[i].group == g;
        if (!there)
            continue;
        jw_key(w, lme_group_name(g));
        jw_arr(w);
        if (k < 0)
            for (int i = 0; i < LME_N_GROUPS - 1; i++)
                jw_str(w, lme_group_name(i));
        for (int i = 0; k >= 0 && i < LME_N_SUBJECTS; i++)
            if (lme_task_at(i)->group == g)
                jw_str(w, lme_task_at(i)->name);
        jw_end_arr(w);
    }
    jw_end_obj(w);
}

static void null_of(struct jw *w, const char *key)
{
    jw_key(w, key);
    jw_null(w);
}

struct templates {
    const char *path, *text, *choice, *target, *query;
};
static const struct templates *templates_of(const struct lme_task *t)
{
    static const struct templates
        mmlu = {"cais/mmlu",
                "{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}\nAnswer:", NULL, "answer",
                NULL},
        arc = {"allenai/ai2_arc", "Question: {{question}}\nAnswer:", "{{choices.text}}", "{{choices.label.index(answerKey)}}",
               "Question: {{question}}\nAnswer:"},
        piqa = {"baber/piqa", "Question: {{goal}}\nAnswer:", "{{[sol1, sol2]}}", "label", "goal"},
        winogrande = {"allenai/winogrande", "<function doc_to_text>", "<function doc_to_choice>", "<function doc_to_target>", "sentence"};
    switch (t->kind) {
    case LME_MMLU:
        return &mmlu;
    case LME_ARC:
        return &arc;
    case LME_PIQA:
        return &piqa;
    case LME_WINOGRANDE:
        return &winogrande;
    }
    BUG("task kind %d", (int)t->kind);
}

static void write_choice(struct jw *w, const struct templates *t)
{
    jw_key(w, "doc_to_choice");
    if (t->choice) {
        jw_str(w, t->choice);
        return;
    }
    jw_arr(w);
    for (int i = 0; i < 4; i++)
        jw_strn(w, &"ABCD"[i], 1);
    jw_end_arr(w);
}

static void write_fewshot(struct jw *w, const struct lme_task *t, const struct templates *x)
{
    bool mmlu = t->kind == LME_MMLU;
    jw_key(w, "fewshot_config");
    jw_obj(w);
    jw_kstr(w, "sampler", mmlu ? "first_n" : "default");
    if (mmlu)
        jw_kstr(w, "split", "dev");
    else
        null_of(w, "split");
    null_of(w, "process_docs");
    null_of(w, "fewshot_indices");
    null_of(w, "samples");
    jw_kstr(w, "doc_to_text", x->text);
    write_choice(w, x);
    jw_kstr(w, "doc_to_target", x->target);
    null_of(w, "gen_prefix");
    jw_kstr(w, "fewshot_delimiter", "\n\n");
    jw_kstr(w, "target_delimiter", " ");
    jw_end_obj(w);
}

static void write_config(struct jw *w, const struct lme_result *r, const struct lme_about *a)
{
    const struct lme_task *t = r->task;
    const struct templates *x = templates_of(t);
    struct str d = STR_INIT;
    bool mmlu = t->kind == LME_MMLU;
    lme_description(t, &d);
    jw_key(w, t->name);
    jw_obj(w);
    jw_kstr(w, "task", t->name);
    if (mmlu)
        jw_kstr(w, "task_alias", t->alias);
    jw_kstr(w, "dataset_path", x->path);
    if (t->set)
        jw_kstr(w, "dataset_name", t->set);
    if (mmlu) {
        jw_kstr(w, "test_split", "test");
        jw_kstr(w, "fewshot_split", "dev");
    } else {
        jw_kstr(w, "training_split", "train");
        jw_kstr(w, "validation_split", "validation");
        if (t->kind == LME_ARC)
            jw_kstr(w, "test_split", "test");
    }
    jw_kstr(w, "doc_to_text", x->text);
    jw_kstr(w, "doc_to_target", x->target);
    jw_kbool(w, "unsafe_code", false);
    write_choice(w, x);
    jw_kstr(w, "description", str_c(&d));
    jw_kstr(w, "target_delimiter", " ");
    jw_kstr(w, "fewshot_delimiter", "\n\n");
    write_fewshot(w, t, x);
    jw_ki64(w, "num_fewshot", r->shots);
    jw_key(w, "metric_list");
    jw_arr(w);
    for (int m = 0; m < LME_N_METRICS; m++) {
        if (!(r->metrics & 1u << m))
            continue;
        jw_obj(w);
        jw_kstr(w, "metric", lme_metric_names[m]);
        jw_kstr(w, "aggregation", m == LME_BRIER ? "brier_score" : "mean");
        jw_kbool(w, "higher_is_better", m != LME_BRIER);
        jw_end_obj(w);
    }
    jw_end_arr(w);
    jw_kstr(w, "output_type", "multiple_choice");
    jw_ki64(w, "repeats", 1);
    jw_kbool(w, "should_decontaminate", x->query != NULL);
    if (x->query)
        jw_kstr(w, "doc_to_decontamination_query", x->query);
    jw_key(w, "metadata");
    jw_obj(w);
    jw_kf64(w, "version", 1);
    jw_kstr(w, "pretrained", a->model_name);
    jw_kstr(w, "dtype", a->bf16 ? "bfloat16" : "float32");
    jw_end_obj(w);
    jw_end_obj(w);
    str_free(&d);
}

static void write_tables(struct jw *w, const struct lme_run_result *r, const struct lme_about *a)
{
    const struct lme_result *v[LME_N_TASKS + LME_N_GROUPS];
    int n = sorted(r, false, true, v);
    jw_key(w, "configs");
    jw_obj(w);
    for (int i = 0; i < n; i++)
        write_config(w, v[i], a);
    jw_end_obj(w);
    n = sorted(r, true, true, v);
    jw_key(w, "versions");
    jw_obj(w);
    for (int i = 0; i < n; i++)
        if (v[i]->task)
            jw_kf64(w, name_of(v[i]), 1);
        else
            jw_kstr(w, name_of(v[i]), "2");
    jw_end_obj(w);
    n = sorted(r, true, false, v);
    jw_key(w, "n-shot");
    jw_obj(w);
    for (int i = 0; i < n; i++)
        if (v[i]->shots >= 0)
            jw_ki64(w, name_of(v[i]), v[i]->shots);
    jw_end_obj(w);
    jw_key(w, "higher_is_better");
    jw_obj(w);
    for (int i = 0; i < n; i++) {
        jw_key(w, name_of(v[i]));
        jw_obj(w);
        for (int m = 0; m < LME_N_METRICS; m++)
            if (v[i]->metrics & 1u << m)
                jw_kbool(w, lme_metric_names[m], m != LME_BRIER);
        jw_end_obj(w);
    }
    jw_end_obj(w);
    jw_key(w, "n-samples");
    jw_obj(w);
    for (int i = 0; i < r->n_tasks; i++) {
        jw_key(w, r->task[i].task->name);
        jw_obj(w);
        jw_ki64(w, "original", r->task[i].original);
        jw_ki64(w, "effective", r->task[i].n);
        jw_end_obj(w);
    }
    jw_end_obj(w);
}

static void write_run_config(struct jw *w, const struct lme_about *a)
{
    char batch[16];
    jw_key(w, "config");
    jw_obj(w);
    jw_kstr(w, "model", "hf");
    jw_key(w, "model_args");
    jw_obj(w);
    jw_kstr(w, "pretrained", a->model_name);
    jw_kstr(w, "dtype", a->bf16 ? "bfloat16" : "float32");
    jw_end_obj(w);
    jw_ki64(w, "model_num_parameters", a->parameters);
    jw_kstr(w, "model_dtype", a->bf16 ? "torch.bfloat16" : "torch.float32");
    jw_kstr(w, "model_revision", "main");
    jw_kstr(w, "model_sha", "");
    snprintf(batch, sizeof batch, "%d", 1); /* results are those of batch 1, whatever the batch was */
    jw_kstr(w, "batch_size", batch);
    jw_key(w, "batch_sizes");
    jw_arr(w);
    jw_end_arr(w);
    jw_kstr(w, "device", a->device);
    null_of(w, "use_cache");
    if (a->limit < 0)
        null_of(w, "limit");
    else
        jw_kf64(w, "limit", a->limit);
    jw_ki64(w, "bootstrap_iters", 100000);
    jw_key(w, "gen_kwargs");
    jw_obj(w);
    jw_end_obj(w);
    jw_ki64(w, "random_seed", 0);
    jw_ki64(w, "numpy_seed", 1234);
    jw_ki64(w, "torch_seed", 1234);
    jw_ki64(w, "fewshot_seed", (int64_t)a->seed);
    jw_end_obj(w);
}

static void write_token(struct jw *w, const char *key, const struct tok *t, int32_t id)
{
    const char *p;
    size_t n;
    char num[16];
    jw_key(w, key);
    if (id < 0 || !tok_bytes(t, id, &p, &n)) {
        jw_null(w);
        return;
    }
    snprintf(num, sizeof num, "%d", (int)id);
    jw_arr(w);
    jw_strn(w, p, n);
    jw_str(w, num);
    jw_end_arr(w);
}

static void write_text_sha(struct jw *w, const char *key, const char *text)
{
    char sha_key[48], hex[65];
    struct err ignored = ERR_INIT;
    snprintf(sha_key, sizeof sha_key, "%s_sha", key);
    if (text && sha256_buf(text, strlen(text), hex, &ignored) == 0) {
        jw_kstr(w, key, text);
        jw_kstr(w, sha_key, hex);
    } else {
        null_of(w, key);
        null_of(w, sha_key);
    }
}

static void write_ours(struct jw *w, const struct lme_run_result *r, const struct lme_about *a)
{
    jw_key(w, "dashlab");
    jw_obj(w);
    jw_kstr(w, "key", a->key);
    jw_kstr(w, "tokenizer", tok_family(a->tok));
    jw_kstr(w, "tokenizer_sha256", tok_sha256(a->tok));
    jw_kstr(w, "model_sha256", a->model_sha256);
    jw_kstr(w, "arithmetic", a->bf16 ? "bf16 parity" : "float32");
    jw_kbool(w, "bundled_subset", a->bundled);
    jw_ki64(w, "tokens", r->tokens);
    jw_key(w, "tasks");
    jw_obj(w);
    for (int i = 0; i < r->n; i++) {
        const struct lme_result *t = &r->task[i];
        jw_key(w, name_of(t));
        jw_obj(w);
        jw_ki64(w, "n", t->n);
        jw_kf64(w, "acc", t->v[LME_ACC].mean);
        jw_kf64(w, "acc_lo", t->v[LME_ACC].lo);
        jw_kf64(w, "acc_hi", t->v[LME_ACC].hi);
        if (t->metrics & 1u << LME_ACC_NORM) {
            jw_kf64(w, "acc_norm_lo", t->v[LME_ACC_NORM].lo);
            jw_kf64(w, "acc_norm_hi", t->v[LME_ACC_NORM].hi);
        }
        jw_ki64(w, "requests", t->requests);
        jw_ki64(w, "tokens", t->cost.tokens);
        jw_ki64(w, "tokens_without_sharing", t->cost.no_sharing);
        jw_ki64(w, "tokens_one_token_cache", t->cost.one_token_cache);
        jw_ki64(w, "truncated_requests", t->truncated);
        jw_ki64(w, "tokens_cut", t->cut);
        jw_ki64(w, "ties", t->ties);
        if (t->task)
            jw_kstr(w, "data_sha256", t->data_sha256);
        jw_end_obj(w);
    }
    jw_end_obj(w);
    jw_end_obj(w);
}

static void write_all(struct jw *w, const struct lme_run_result *r, const struct lme_about *a)
{
    jw_obj(w);
    jw_key(w, "results");
    jw_obj(w);
    for (int i = 0; i < r->n; i++)
        write_result(w, &r->task[i]);
    jw_end_obj(w);
    if (r->n > r->n_tasks) {
        jw_key(w, "groups");
        jw_obj(w);
        for (int i = r->n_tasks; i < r->n; i++)
            write_result(w, &r->task[i]);
        jw_end_obj(w);
    }
    write_subtasks(w, r);
    write_tables(w, r, a);
    write_run_config(w, a);
    null_of(w, "git_hash");
    if (a->dates)
        jw_kf64(w, "date", a->start);
    null_of(w, "pretty_env_info");
    null_of(w, "transformers_version");
    jw_kstr(w, "lm_eval_version", "0.4.13");
    null_of(w, "upper_git_hash");
    write_token(w, "tokenizer_pad_token", a->tok, tok_eos(a->tok));
    write_token(w, "tokenizer_eos_token", a->tok, tok_eos(a->tok));
    write_token(w, "tokenizer_bos_token", a->tok, tok_bos(a->tok));
    jw_ki64(w, "eot_token_id", tok_eos(a->tok));
    jw_ki64(w, "max_length", a->max_length);
    jw_key(w, "task_hashes");
    jw_obj(w);
    for (int i = 0; i < r->n_tasks; i++)
        jw_kstr(w, r->task[i].task->name, r->task[i].hash);
    jw_end_obj(w);
    jw_kstr(w, "model_source", "hf");
    jw_kstr(w, "model_name", a->model_name);
    jw_kstr(w, "model_name_sanitized", a->sanitized);
    write_text_sha(w, "system_instruction", a->system);
    if (a->chat)
        jw_kbool(w, "fewshot_as_multiturn", a->multiturn);
    else
        null_of(w, "fewshot_as_multiturn");
    write_text_sha(w, "chat_template", a->chat ? tok_chat_template(a->tok) : NULL);
    if (a->dates) {
        char text[32];
        fmt_f64(text, a->seconds);
        jw_kstr(w, "total_evaluation_time_seconds", text);
    }
    write_ours(w, r, a);
    jw_end_obj(w);
}

int lme_write_results(const char *path, const struct lme_run_result *r, const struct lme_about *a, struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    jw_init(&w, &s, true);
    write_all(&w, r, a);
    str_putc(&s, '\n');
    int rc = jw_ok(&w, path, e) || str_ok(&s, path, e) || file_write(path, str_c(&s), s.len, e) ? -1 : 0;
    str_free(&s);
    return rc;
}

void lme_sanitize(const char *name, char out[256])
{
    size_t n = 0;
    for (const char *p = name; *p && n < 250; p++) {
        if (strchr("\"<>:/\\|?*[]", *p)) {
            out[n++] = '_';
            out[n++] = '_';
        } else
            out[n++] = *p;
    }
    out[n] = 0;
}

void lme_date_name(double start, char out[48])
{
    time_t t = (time_t)start;
    struct tm tm;
    char text[32];
    localtime_r(&t, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H-%M-%S", &tm);
    snprintf(out, 48, "%s.%06d", text, (int)((start - floor(start)) * 1e6));
}
