/* What plans share and say: stages that extend others, collections, planned keys, reasons, one run by its key, jobs. Stage kinds of this
 * file write small text files. */
#include <unistd.h>

#include "core/log.h"
#include "core/prog.h"
#include "experiments/export.h"
#include "experiments/plan.h"
#include "experiments/show.h"
#include "tests/test.h"

/* ---- stage kinds ---- */

static const struct param_spec make_params[] = {{.name = "source", .type = PT_REF, .help = "an input"},
                                                {.name = "n", .type = PT_INT, .def = "3", .lo = 1, .hi = 1000, .help = "a number"},
                                                {.name = "rate", .type = PT_NUM, .def = "", .help = "may be absent"}};
static const struct param_spec pick_params[] = {{.name = "from", .type = PT_REF, .help = "a make stage"},
                                                {.name = "k", .type = PT_INT, .help = "what is picked"}};
static const struct param_spec use_params[] = {{.name = "what", .type = PT_REF, .help = "pick stages", .fan = true},
                                               {.name = "seed", .type = PT_INT, .def = "0", .help = "a seed"}};

static int ran, fail_k;

static int write_out(struct run *r, const char *name, const char *text, struct err *e)
{
    char path[1024];
    return file_write(path_join(path, r->out, name), text, strlen(text), e);
}
static int run_any(void *env, const struct node *n, struct run *r, struct err *e)
{
    UNUSED(env);
    UNUSED(n);
    ran++;
    return write_out(r, "result.json", "{}\n", e);
}
static int run_pick(void *env, const struct node *n, struct run *r, struct err *e)
{
    char id[32];
    UNUSED(env);
    ran++;
    if (node_i64(n, "k") == fail_k)
        return ERR(e, E_NUMERIC, "pick: %d does not work", fail_k);
    snprintf(id, sizeof id, "set %d\n", (int)node_i64(n, "k") / 10);
    TRY(write_out(r, "identity.txt", id, e));
    return write_out(r, "result.json", "{}\n", e);
}
static bool on_host(const struct node *n)
{
    UNUSED(n);
    return true;
}
static const struct stage_kind kind_make = {
    .name = "make", .about = "makes", .version = 1, .params = make_params, .n_params = ARRAY_LEN(make_params), .run = run_any,
    .host = on_host};
static const struct stage_kind kind_pick = {.name = "pick",
                                            .about = "picks",
                                            .version = 1,
                                            .params = pick_params,
                                            .n_params = ARRAY_LEN(pick_params),
                                            .by_content = true,
                                            .run = run_pick};
static const struct stage_kind kind_use = {
    .name = "use", .about = "uses", .version = 1, .params = use_params, .n_params = ARRAY_LEN(use_params), .run = run_any};
static const struct stage_kind *const kinds[] = {&kind_make, &kind_pick, &kind_use};
static const char *const report_words[] = {"table"};
static struct hash_cache hashes;
static const struct registry reg = {
    .kinds = kinds, .n = ARRAY_LEN(kinds), .report_kinds = report_words, .n_report_kinds = 1, .hashes = &hashes};

static char dir[] = "/tmp/dashlab-plans-XXXXXX";
static char runs[1024], input[1024];

static const char *file(const char *name, const char *text)
{
    static char path[4][1024];
    static int at;
    struct str s = STR_INIT;
    char *p = path[at++ % 4];
    for (; *text; text++)
        *text == '@' ? str_puts(&s, input) : str_putc(&s, *text);
    CHECK_OK(file_write(path_join(p, dir, name), str_c(&s), s.len, e));
    str_free(&s);
    return p;
}

static void refused(const char *path, const char *scale, const char *text)
{
    struct manifest m;
    CHECK_ERR(manifest_load(&m, path, scale, &reg, e), E_USAGE, text);
}

static const struct node *nth(const struct plan *p, const char *id, size_t k)
{
    const struct node *n[64];
    size_t have = plan_named(p, id, n, ARRAY_LEN(n));
    CHECK(k < have);
    return k < have ? n[k] : p->nodes[0];
}

#define HEAD "dash: 1\nname: demo\ninputs:\n  src: {path: @}\n"
#define BASE                                                                                                                               \
    HEAD "scales:\n  ci: {one.n: 7}\n  tiny: {}\nstages:\n  - {id: one, kind: make, source: src, rate: 0.5}\n  - {id: pick, kind: pick, "  \
         "from: one, k: 20}\n"

/* ---- manifests ---- */

static void test_extends(void)
{
    struct manifest m;
    struct plan p;
    file("base.yaml", BASE);
    const char *path = file("m.yaml", "dash: 1\nname: more\nbase: base.yaml\nstages:\n  - {id: two, extends: one, rate: 0.25}\n  - {id: "
                                      "three, extends: one}\n  - {id: four, extends: two, n: 9}\n");
    CHECK_OK(manifest_load(&m, path, "ci", &reg, e));
    CHECK_OK(plan_make(&p, &m, &reg, runs, e));
    CHECK_EQ_I(node_i64(nth(&p, "two", 0), "n"), 7); /* as the base has it at this scale */
    CHECK_EQ_I((int64_t)(100 * node_f64(nth(&p, "two", 0), "rate")), 25);
    CHECK_EQ_I(node_i64(nth(&p, "four", 0), "n"), 9);
    CHECK_EQ_I((int64_t)(100 * node_f64(nth(&p, "four", 0), "rate")), 25);
    CHECK_STR(nth(&p, "three", 0)->label, "three"); /* a label is not inherited */
    plan_free(&p);
    manifest_free(&m);
    refused(path, "small", "has no scale 'small'"); /* the base's scales bind what builds on it */
    refused(file("x.yaml", HEAD "stages:\n  - {id: a, extends: b}\n  - {id: b, kind: make, source: src}\n"), "tiny",
            "names 'b', which is no stage before it");
    refused(file("x.yaml", HEAD "stages:\n  - {id: a, kind: make, source: src}\n  - {id: b, kind: use, extends: a}\n"), "tiny",
            "cannot extend 'a', which is of kind 'make'");
    refused(file("x.yaml", HEAD "stages:\n  - {id: a, kind: make, source: src}\n  - {id: b, extends: a, k: 3}\n"), "tiny",
            "unknown key 'k'");
}

static void test_collection(void)
{
    struct manifest m;
    file("a.yaml", BASE);
    file("b.yaml", BASE);
    CHECK_OK(manifest_load(&m, file("all.yaml", "dash: 1\nname: all\nmanifests: [a.yaml, b.yaml]\n"), "tiny", &reg, e));
    CHECK_EQ_I(m.n_parts, 2);
    CHECK(strstr(m.parts[1], "/b.yaml") && m.n_stages == 0);
    manifest_free(&m);
    refused(file("all.yaml", "dash: 1\nname: all\nmanifests: [a.yaml, a.yaml]\n"), "tiny", "stands twice");
    refused(file("all.yaml", "dash: 1\nname: all\nmanifests: [none.yaml]\n"), "tiny", "none.yaml' does not exist");
    refused(file("all.yaml", "dash: 1\nname: all\nmanifests: [../a.yaml]\n"), "tiny", "same folder");
    refused(file("all.yaml", "dash: 1\nname: all\nmanifests: []\n"), "tiny", "at least one manifest");
    refused(file("all.yaml", "dash: 1\nname: all\nmanifests: [a.yaml]\nstages: []\n"), "tiny", "unknown key 'stages' in a collection");
}

/* ---- plans ---- */

#define CHAIN                                                                                                                              \
    HEAD "stages:\n  - {id: one, kind: make, source: src}\n  - {id: pick, kind: pick, from: one, matrix: {k: [20, 30]}}\n  - {id: use, "   \
         "kind: use, what: pick, matrix: {seed: [0, 1]}}\n"
#define OTHER                                                                                                                              \
    HEAD "stages:\n  - {id: one, kind: make, source: src}\n  - {id: mine, kind: pick, from: one, k: 30}\n  - {id: use, kind: use, what: "  \
         "mine, matrix: {seed: [1, 2]}}\n"

static void open_two(struct manifest m[2], struct plan p[2])
{
    CHECK_OK(manifest_load(&m[0], file("a.yaml", CHAIN), "tiny", &reg, e));
    CHECK_OK(manifest_load(&m[1], file("b.yaml", OTHER), "tiny", &reg, e));
    CHECK_OK(plan_make(&p[0], &m[0], &reg, runs, e));
    CHECK_OK(plan_make(&p[1], &m[1], &reg, runs, e));
}

static void close_two(struct manifest m[2], struct plan p[2])
{
    for (int i = 0; i < 2; i++) {
        plan_free(&p[i]);
        manifest_free(&m[i]);
    }
}

/* Runs whose keys are not known yet are told to be the same by what they are planned from; the key stays when they are made. */
static void test_planned(void)
{
    struct manifest m[2];
    struct plan p[2];
    struct plan_summary s;
    struct run_options o = {.only = ""};
    struct str text = STR_INIT;
    open_two(m, p);
    const struct plan *const both[] = {&p[0], &p[1]};
    CHECK(!nth(&p[0], "use", 0)->key[0]);
    CHECK_STR(nth(&p[0], "use", 3)->planned, nth(&p[1], "use", 0)->planned); /* pick k=30, seed 1 */
    CHECK(strcmp(nth(&p[0], "use", 2)->planned, nth(&p[1], "use", 0)->planned) != 0);
    CHECK(strstr(nth(&p[0], "use", 0)->lines, "\nwhat run ?\nseed 0\n"));
    plans_print(both, 2, NULL, &text);
    CHECK(strstr(str_c(&text), "== demo") && strstr(str_c(&text), "11 stages: 0 done, 3 shared, 8 to run"));
    str_clear(&text);
    plans_dot(both, 2, "two", &text);
    CHECK(strstr(str_c(&text), "digraph \"two\"") && strstr(str_c(&text), "n2 -> n10;") &&
          !strstr(str_c(&text), "n7 [")); /* 7: one, of the second */
    char planned[65];
    snprintf(planned, sizeof planned, "%s", nth(&p[0], "use", 3)->planned);
    ran = 0;
    CHECK_OK(plan_run(&p[0], &o, &s, e));
    CHECK_EQ_I(ran, 7);
    CHECK_OK(plan_run(&p[1], &o, &s, e));
    CHECK(ran == 8 && s.up_to_date == 3 && s.ran == 1);
    close_two(m, p);
    open_two(m, p);
    CHECK_STR(nth(&p[0], "use", 3)->planned, planned);
    str_free(&text);
    close_two(m, p);
}

static void why_is(const struct plan *p, const char *id, size_t k, const char *text)
{
    struct runs_index ix;
    struct str s = STR_INIT;
    CHECK_OK(runs_index_open(&ix, runs, e));
    plan_why(p, nth(p, id, k), &ix, &s);
    if (!strstr(str_c(&s), text))
        printf("why %s: %s\n", id, str_c(&s));
    CHECK(strstr(str_c(&s), text) != NULL);
    str_free(&s);
    runs_index_close(&ix);
}

static void test_why(void)
{
    struct manifest m;
    struct plan p;
    CHECK_OK(manifest_load(&m,
                           file("w.yaml",
                                HEAD "stages:\n  - {id: one, kind: make, source: src, n: 5}\n  - {id: again, kind: make, source: src}\n  - "
                                     "{id: pick, kind: pick, from: one, k: 20}\n"
                                     "  - {id: wide, kind: make, source: src, n: 8, rate: 0.5}\n  - {id: use, kind: use, what: pick}\n"),
                           "tiny", &reg, e));
    CHECK_OK(plan_make(&p, &m, &reg, runs, e));
    why_is(&p, "one", 0, "n 3 -> 5 (against make-"); /* the runs of test_planned */
    why_is(&p, "pick", 0, "from (one) changed");
    why_is(&p, "wide", 0, "rate 0.5 is new");
    why_is(&p, "use", 0, "waits for pick");
    CHECK(nth(&p, "again", 0)->state == RUN_COMPLETE);
    plan_free(&p);
    CHECK_OK(plan_make(&p, &m, &reg, "/nowhere", e));
    struct runs_index ix;
    struct str s = STR_INIT;
    CHECK_OK(runs_index_open(&ix, "/nowhere", e)); /* no folder: no runs */
    CHECK_EQ_I(ix.n, 0);
    plan_why(&p, nth(&p, "one", 0), &ix, &s);
    CHECK_STR(str_c(&s), "no run of this kind yet");
    str_free(&s);
    runs_index_close(&ix);
    plan_free(&p);
    manifest_free(&m);
}

static void test_matches(void)
{
    CHECK(key_matches("kind use\nwhat run ?\nseed 0\n", "kind use\nwhat run 0abc\nseed 0\n"));
    CHECK(!key_matches("kind use\nwhat run ?\nseed 0\n", "kind use\nwhat run 0abc\nseed 1\n"));
    CHECK(!key_matches("kind use\nwhat run ?\nseed 0\n", "kind use\nwhat run 0abc\n"));
    CHECK(!key_matches("kind use\nwhat run ?\n", "kind use\nwhat run 0abc\nseed 0\n"));
    CHECK(!key_matches("kind use\nwhat run ?\n", "kind use\nwhat sha256 0abc\n"));
    CHECK(key_matches("a\n", "a\n") && !key_matches("a\n", "b\n") && !key_matches("a\n", ""));
}

/* --only by stage and by planned key; what failed under one plan is not tried again under the next; --force makes a run once. */
static void test_session(void)
{
    struct manifest m[2];
    struct plan p[2];
    struct plan_summary s;
    struct run_session session;
    struct err first = ERR_INIT;
    char only[128];
    open_two(m, p);
    snprintf(only, sizeof only, "use:%.12s", nth(&p[0], "use", 3)->planned);
    CHECK_EQ_I(plan_wanted(&p[0], only), 3); /* with what it needs */
    CHECK_EQ_I(plan_wanted(&p[0], "use:"), 0);
    CHECK_EQ_I(plan_wanted(&p[0], "use"), 7);
    CHECK_EQ_I(plan_wanted(&p[0], "nothing"), 0);
    run_session_open(&session);
    struct run_options o = {.only = "", .force = true, .session = &session};
    ran = 0;
    CHECK_OK(plan_run(&p[0], &o, &s, e));
    CHECK_EQ_I(ran, 7);
    CHECK_OK(plan_run(&p[1], &o, &s, e));
    CHECK(ran == 8 && s.up_to_date == 3);
    run_session_close(&session);
    CHECK_OK(remove_tree(runs, e));
    run_session_open(&session);
    o.force = false;
    fail_k = 30;
    ran = 0;
    CHECK(plan_run(&p[0], &o, &s, &first) == 0);
    CHECK(s.failed == 3 && ran == 5 && first.code == E_NUMERIC);
    first = (struct err)ERR_INIT;
    CHECK(plan_run(&p[1], &o, &s, &first) == 0);
    CHECK(s.failed == 3 && ran == 5 && first.code == E_NUMERIC && strstr(first.msg, "30 does not work"));
    fail_k = 0;
    run_session_close(&session);
    close_two(m, p);
}

static void test_export(void)
{
    struct manifest m[2];
    struct plan p[2];
    static const struct export_command command[] = {{"dashlab reproduce a.yaml", "dashlab reproduce a.yaml --device cpu"},
                                                    {"dashlab reproduce b.yaml", "dashlab reproduce b.yaml --device cpu"}};
    char jobs_dir[1024], path[1024];
    struct str s = STR_INIT;
    int jobs;
    CHECK_OK(remove_tree(runs, e));
    open_two(m, p);
    const struct plan *const both[] = {&p[0], &p[1]};
    CHECK_OK(export_plans(EXPORT_SLURM, both, 2, command, "dashlab reproduce all.yaml", "two", path_join(jobs_dir, dir, "jobs"), &jobs, e));
    CHECK_EQ_I(jobs, 8);
    CHECK_OK(file_read(path_join(path, jobs_dir, "submit.sh"), 0, &s, e));
    const char *use = nth(&p[0], "use", 3)->planned, *pick = nth(&p[0], "pick", 1)->planned;
    char want[200];
    snprintf(want, sizeof want, "job_%.12s=$(on_gpu --dependency=afterok:$job_%.12s \"$here/", use, pick);
    CHECK(strstr(str_c(&s), want) != NULL);
    const char *make = nth(&p[0], "one", 0)->planned;
    snprintf(want, sizeof want, "job_%.12s=$(on_host \"$here/", make); /* asks for no GPU */
    CHECK(strstr(str_c(&s), want) && !strstr(strstr(str_c(&s), "on_host() {"), "--gpus"));
    str_clear(&s);
    snprintf(want, sizeof want, "0001-one-%.8s.sbatch", make);
    CHECK_OK(file_read(path_join(path, jobs_dir, want), 0, &s, e));
    CHECK(strstr(str_c(&s), "exec dashlab reproduce a.yaml --device cpu --only 'one:") != NULL);
    str_clear(&s);
    snprintf(want, sizeof want, "0007-use-%.8s.sbatch", use);
    CHECK_OK(file_read(path_join(path, jobs_dir, want), 0, &s, e));
    snprintf(want, sizeof want, "exec dashlab reproduce a.yaml --only 'use:%.12s' --wait --no-reports\n", use);
    CHECK(strstr(str_c(&s), want) && strstr(str_c(&s), "#SBATCH --requeue\n"));
    str_clear(&s);
    path_join(jobs_dir, dir, "make");
    CHECK_OK(export_plans(EXPORT_MAKE, both, 2, command, "dashlab reproduce '$all.yaml'", "two", jobs_dir, &jobs, e));
    CHECK_EQ_I(jobs, 8);
    CHECK_OK(file_read(path_join(path, jobs_dir, "Makefile"), 0, &s, e));
    snprintf(want, sizeof want, "\nuse-%.12s: pick-%.12s\n\tcd \"$${FROM:?make the target report}\" && dashlab reproduce a.yaml --only 'use:%.12s' --wait ", use,
             pick, use);
    CHECK(strstr(str_c(&s), want) && strstr(str_c(&s), "\tdashlab reproduce '$$all.yaml'\n"));
    str_free(&s);
    close_two(m, p);
}

int main(void)
{
    CHECK(mkdtemp(dir) != NULL);
    path_join(runs, dir, "runs");
    CHECK_OK(file_write(path_join(input, dir, "input"), "bytes", 5, e));
    log_set_level(LOG_ERROR);
    prog_quiet(true);
    hash_cache_open(&hashes);
    test_extends();
    test_collection();
    test_planned();
    test_why();
    test_matches();
    test_session();
    test_export();
    hash_cache_close(&hashes);
    CHECK_OK(remove_tree(dir, e));
    return test_end();
}
