/* Manifests (every error at once), plans (matrix, points, fan, sharing, resuming), run directories. No model is involved: stage kinds of
 * this file write small text files. */
#include <unistd.h>

#include "core/log.h"
#include "core/prog.h"
#include "experiments/plan.h"
#include "experiments/show.h"
#include "tests/test.h"

/* ---- stage kinds ---- */

static const char *const colours[] = {"red", "green", NULL};
static const struct param_spec make_params[] = {{.name = "source", .type = PT_REF, .help = "an input"},
                                                {.name = "n", .type = PT_INT, .def = "3", .lo = 1, .hi = 1000, .unit = "rows",
                                                 .help = "a number"}, {.name = "seed", .type = PT_INT, .def = "0", .help = "a seed"},
                                                {.name = "colour", .type = PT_WORD, .def = "red", .words = colours, .help = "a word"},
                                                {.name = "threads", .type = PT_INT, .def = "1", .help = "changes no result", .free = true}};
static const struct param_spec pick_params[] = {{.name = "from", .type = PT_REF, .help = "a make stage"},
                                                {.name = "k", .type = PT_INT, .help = "how many"},
                                                {.name = "rate", .type = PT_NUM, .def = "0.5", .help = "a rate"}};
static const struct param_spec use_params[] = {{.name = "what", .type = PT_REF, .help = "pick stages", .fan = true},
                                               {.name = "extra", .type = PT_REFS, .def = "", .help = "more stages"},
                                               {.name = "seed", .type = PT_INT, .def = "0", .help = "a seed"}};
static const struct param_spec again_params[] = {{.name = "scores", .type = PT_REF, .def = "", .help = "a pick stage, all of it",
                                                  .whole = true}};

struct world {
    int ran, fail_k, decline_k; /* 'pick' fails, declines at this k */
};

static int write_result(struct run *r, const char *text, struct err *e)
{
    char path[1024];
    return file_write(path_join(path, r->out, "result.json"), text, strlen(text), e);
}
static int run_make(void *env, const struct node *n, struct run *r, struct err *e)
{
    ((struct world *)env)->ran++;
    char text[64];
    snprintf(text, sizeof text, "{\"rows\": %d, \"half\": 0.5}\n", (int)node_i64(n, "n"));
    return write_result(r, text, e);
}
static int run_pick(void *env, const struct node *n, struct run *r, struct err *e)
{
    struct world *w = env;
    char path[1024], id[32];
    w->ran++;
    if (node_i64(n, "k") == w->fail_k)
        return ERR(e, E_NUMERIC, "pick: k = %d does not work", w->fail_k);
    r->declined = node_i64(n, "k") == w->decline_k;
    if (r->declined)
        return ERR(e, E_CHECK, "pick: k = %d says nothing", w->decline_k);
    snprintf(id, sizeof id, "set %d\n", (int)node_i64(n, "k") / 10); /* 20 and 21 pick the same set */
    TRY(file_write(path_join(path, r->out, "identity.txt"), id, strlen(id), e));
    return write_result(r, "{\"set\": \"x\"}\n", e);
}
static int run_use(void *env, const struct node *n, struct run *r, struct err *e)
{
    ((struct world *)env)->ran++;
    UNUSED(n);
    return write_result(r, "{\"score\": 7}\n", e);
}
static int plan_make_cost(void *env, const struct node *n, struct stage_cost *c, struct err *e)
{
    UNUSED(env);
    UNUSED(e);
    c->tokens = 10 * node_i64(n, "n");
    return 0;
}
static const struct stage_kind kind_make = {.name = "make", .about = "makes", .version = 1, .params = make_params,
                                            .n_params = ARRAY_LEN(make_params), .plan = plan_make_cost, .run = run_make};
static const struct stage_kind kind_pick = {.name = "pick", .about = "picks", .version = 1, .params = pick_params,
                                            .n_params = ARRAY_LEN(pick_params), .by_content = true, .run = run_pick};
static const struct stage_kind kind_use = {.name = "use", .about = "uses", .version = 1, .params = use_params,
                                           .n_params = ARRAY_LEN(use_params), .run = run_use};
static const struct stage_kind kind_again = {.name = "again", .about = "uses what is not in the identity", .version = 1,
                                             .params = again_params, .n_params = ARRAY_LEN(again_params), .run = run_use};
static const struct stage_kind *const kinds[] = {&kind_make, &kind_pick, &kind_use, &kind_again};
static const char *const report_words[] = {"table"};
static struct world world;
static const struct registry reg = {.kinds = kinds, .n = ARRAY_LEN(kinds), .env = &world, .report_kinds = report_words,
                                    .n_report_kinds = 1};

static char dir[] = "/tmp/dashlab-experiments-XXXXXX";
static char input[1024];

/* The manifest of these lines, with the input's path in place of @. */
static const char *manifest_file(const char *text)
{
    static char path[1024];
    struct str s = STR_INIT;
    for (; *text; text++) {
        if (*text == '@')
            str_puts(&s, input);
        else
            str_putc(&s, *text);
    }
    CHECK_OK(file_write(path_join(path, dir, "m.yaml"), str_c(&s), s.len, e));
    str_free(&s);
    return path;
}

/* ---- manifests ---- */

#define HEAD "dash: 1\nname: demo\ninputs:\n  src: {path: @}\n"

static void refused(const char *text, const char *scale, const char *const *wanted)
{
    struct manifest m;
    struct err e = ERR_INIT;
    CHECK(manifest_load(&m, manifest_file(text), scale, &reg, &e) != 0);
    CHECK_EQ_I(e.code, E_USAGE);
    for (; *wanted; wanted++) {
        if (!strstr(e.msg, *wanted))
            printf("message is: %s\n", e.msg);
        CHECK_STR(strstr(e.msg, *wanted) ? *wanted : "(not in the message)", *wanted);
    }
}
#define REFUSED(text, ...) refused(text, "tiny", (const char *const[]){__VA_ARGS__, NULL})

static void test_manifest_errors(void)
{
    /* several at once, each with its place, the line and a caret */
    REFUSED(HEAD "stages:\n  - {id: a, kind: make, source: src, n: 0}\n  - {id: b, kind: pikc}\n  - {id: c, kind: pick, from: a, kk: 3}\n",
            "m.yaml:6:41: error: 'n': 0 is outside 1..1000 rows", "m.yaml:7:19: error: unknown stage kind 'pikc'; did you mean 'pick'?",
            "m.yaml:8:", "unknown key 'kk'", "stage 'c' of kind 'pick' needs 'k' (how many)", "^", "- {id: b, kind: pikc}");
    REFUSED("dash: 2\nname: Demo\nstages: []\n", "'dash: 1' (the schema version) is needed, found 2", "lower-case letters, digits and '-'",
            "at least one stage");
    REFUSED(HEAD "stagse: []\n", "unknown key 'stagse' in the manifest; did you mean 'stages'?");
    REFUSED(HEAD "stages:\n  - {id: a, kind: make, source: scr, n: x, colour: gren}\n", "refers to 'scr', which is no stage or input",
            "'x' is not an integer", "did you mean 'green'?");
    REFUSED(HEAD "stages:\n  - {id: b, kind: pick, from: a, k: 1}\n  - {id: a, kind: make, source: src}\n", "does not stand before it");
    REFUSED(HEAD "stages:\n  - {id: a, kind: make, source: src}\n  - {id: a, kind: make, source: src}\n", "two stages are called 'a'");
    REFUSED(HEAD "stages:\n  - {id: a, kind: pick, from: src, k: 1}\n  - {id: b, kind: use, what: a, extra: ['a|a']}\n",
            "'|' is not allowed here"); /* was an endless loop */
    REFUSED(HEAD "stages:\n  - {id: 'a,b', kind: make, source: src}\n", "stage id 'a,b'");
    REFUSED(HEAD "stages:\n  - {id: a, kind: make, source: src, matrix: {n: []}}\n", "matrix parameter 'n' needs a list");
    REFUSED(HEAD "stages:\n  - {id: a, kind: make, source: src, points: [{n: 1}, {m: 2}]}\n", "unknown key 'm'");
    // given at one point only
    REFUSED(HEAD "stages:\n  - {id: a, kind: make, source: src}\n  - {id: b, kind: pick, from: a, points: [{k: 1}, {rate: 2}]}\n",
            "needs 'k'");
    REFUSED(HEAD "stages:\n  - {id: a, kind: make, source: src}\n  - {id: b, kind: pick, from: a, k: 1}\n  - {id: c, kind: use, what: "
            "[src, b]}\n", "input 'src' cannot stand in a list");
    REFUSED(HEAD "stages:\n  - {id: a, kind: make, source: src}\n  - {id: b, kind: pick, k: 1, matrix: {from: [a, q]}}\n  - {id: c, kind: "
            "pick, k: 1, points: [{from: b}, {k: 2, from: z}]}\n", "'from' of stage 'b' refers to 'q'",
            "'from' of stage 'c' refers to 'z'");
    REFUSED(HEAD "stages: [{id: a, kind: make, source: src}]\nreports: [{kind: tabel, name: t}, {kind: table, name: t}, {name: q}]\n",
            "unknown report kind 'tabel'; did you mean 'table'?", "two reports are called 't'", "a report needs 'kind' and 'name'");
    REFUSED(HEAD "scales:\n  tiny: {b.n: 3, a.m: 3, skip: [x], inputs.q: z, inputs.src.sha: 0}\nstages: [{id: a, kind: make, source: "
            "src}]\n", "'b.n' names no stage", "unknown key 'm'", "'skip' names no stage", "'inputs.q' names no input", "'inputs.src.sha'");
    REFUSED(HEAD "scales:\n  tiny: {skip: a}\nstages: [{id: a, kind: make, source: src}]\n", "'skip' must be a list");
    REFUSED(HEAD "stages:\n  - [x]\n  - {id: a}\n  - {id: b, kind: pick, from: c, k: 1}\n", "a stage must be a map",
            "a stage needs 'id' and 'kind'", "refers to 'c'");
    REFUSED(HEAD "scales: {huge: {}}\nstages: [{id: a, kind: make, source: src}]\n", "unknown key 'huge' in 'scales'", "no scale 'tiny'");
    struct manifest m;
    CHECK_ERR(manifest_load(&m, manifest_file(HEAD "stages: [{id: a, kind: make, source: src}]\n"), "big", &reg, e), E_USAGE,
              "unknown scale 'big'");
    CHECK_ERR(manifest_load(&m, "/nowhere/m.yaml", "tiny", &reg, e), E_INPUT, "/nowhere/m.yaml");
}

static void test_canon(void)
{
    struct arena a;
    char why[256];
    arena_init(&a, 0);
    const struct param_spec ints = {.name = "l", .type = PT_INTS}, num = {.name = "x", .type = PT_NUM},
        flag = {.name = "b", .type = PT_BOOL}, *n = &make_params[1];
    CHECK_STR(param_canon(&a, n, "1e2", why), "100");
    CHECK_STR(param_canon(&a, &num, "1e-1", why), "0.1");
    CHECK_STR(param_canon(&a, &num, "2k", why), "2000.0");
    CHECK_STR(param_canon(&a, &ints, " 1, 2k ,3", why), "1,2000,3");
    CHECK_STR(param_canon(&a, &flag, "yes", why), "true");
    CHECK(!param_canon(&a, &ints, "1,,2", why) && !param_canon(&a, &num, "nan", why) && !param_canon(&a, &flag, "maybe", why));
    arena_free(&a);
}

/* ---- plans ---- */

#define PLAN                                                                                                                 \
    HEAD "caption: all\nscales:\n  ci: {make.n: 5, skip: [spare], caption: cut, pick.points: [{k: 20}]}\n  tiny: {}\nstages:\n" \
         "  - {id: make, kind: make, source: src, matrix: {seed: [1, 2], colour: [red, green]}}\n"                             \
         "  - {id: one, kind: make, source: src}\n"                                                                           \
         "  - {id: pick, kind: pick, label: Pick, from: one, points: [{k: 20, rate: 0.25}, {k: 21}, {k: 30}]}\n"              \
         "  - {id: spare, kind: pick, from: one, k: 30}\n"                                                                    \
         "  - {id: use, kind: use, what: [pick, spare], matrix: {seed: [8, 9]}}\n"                                            \
         "reports: [{kind: table, name: t, from: [use]}]\n"

static void open_plan(struct manifest *m, struct plan *p, const char *text, const char *scale)
{
    char runs[1024];
    CHECK_OK(manifest_load(m, manifest_file(text), scale, &reg, e));
    CHECK_OK(plan_make(p, m, &reg, path_join(runs, dir, "runs"), e));
}
static void close_plan(struct manifest *m, struct plan *p)
{
    plan_free(p);
    manifest_free(m);
}

static size_t count(const struct plan *p, const char *id)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++)
        n += !strcmp(p->nodes[i]->stage->id, id);
    return n;
}
static struct node *nth(const struct plan *p, const char *id, size_t k)
{
    for (size_t i = 0; i < p->n; i++)
        if (!strcmp(p->nodes[i]->stage->id, id) && k-- == 0)
            return p->nodes[i];
    CHECK(!"such a node");
    return p->nodes[0];
}

static void test_expand(void)
{
    struct manifest m;
    struct plan p;
    open_plan(&m, &p, PLAN, "tiny");
    CHECK(count(&p, "make") == 4 && count(&p, "one") == 1 && count(&p, "pick") == 3 && count(&p, "spare") == 1 && count(&p, "use") == 8);
    CHECK_STR(nth(&p, "make", 0)->point, "seed=1 colour=red"); /* the first name of a matrix runs fastest */
    CHECK_STR(nth(&p, "make", 1)->point, "seed=2 colour=red");
    CHECK_STR(nth(&p, "make", 3)->point, "seed=2 colour=green");
    CHECK_STR(nth(&p, "pick", 0)->point, "k=20 rate=0.25");
    CHECK(node_f64(nth(&p, "pick", 0), "rate") == 0.25 && node_f64(nth(&p, "pick", 1), "rate") == 0.5);
    const struct node *u = nth(&p, "use", 3); /* the second pick, seed 9 */
    CHECK_STR(u->point, "k=21 seed=9");
    CHECK_STR(u->label, "Pick");
    CHECK(node_ref(u, "what") == nth(&p, "pick", 1) && node_i64(u, "seed") == 9 && !node_has(u, "extra"));
    CHECK_STR(node_setting(u, "k"), "21");
    CHECK_STR(node_setting(u, "n"), "3");
    CHECK(node_setting(u, "nothing") == NULL);
    CHECK(node_of_kind(u, "make") == nth(&p, "one", 0));
    CHECK_EQ_I(nth(&p, "one", 0)->cost.tokens, 30);
    CHECK(nth(&p, "one", 0)->key[0] && nth(&p, "pick", 0)->key[0] && !u->key[0]); /* a by-content parent has no identity before it ran */
    CHECK_STR(m.caption, "all");
    close_plan(&m, &p);
    open_plan(&m, &p, PLAN, "ci");
    CHECK(count(&p, "pick") == 1 && count(&p, "spare") == 0 && count(&p, "use") == 2);
    CHECK_EQ_I(node_i64(nth(&p, "make", 0), "n"), 5);
    CHECK_STR(m.caption, "cut");
    close_plan(&m, &p);
    /* a reference that is not a fan must be one run */
    CHECK_OK(manifest_load(&m,
                           manifest_file(HEAD "stages:\n  - {id: a, kind: make, source: src, matrix: {n: [1, 2]}}\n  - {id: b, kind: "
                                         "pick, from: a, k: 1}\n"), "tiny", &reg, e));
    CHECK_ERR(plan_make(&p, &m, &reg, dir, e), E_USAGE, "refers to 'a', which has several runs");
    manifest_free(&m);
}

static void test_keys(void)
{
    struct manifest m, m2;
    struct plan p, p2;
    open_plan(&m, &p,
              HEAD "stages:\n  - {id: a, kind: make, source: src}\n  - {id: b, kind: make, source: src, n: 3, threads: 8}\n  - {id: c, "
              "kind: make, source: src, n: 4}\n", "tiny");
    CHECK_STR(nth(&p, "a", 0)->key, nth(&p, "b", 0)->key); /* defaults spelt out and free parameters change nothing */
    CHECK(strcmp(nth(&p, "a", 0)->key, nth(&p, "c", 0)->key) != 0);
    CHECK(strstr(nth(&p, "a", 0)->lines, "schema 1\nkind make\nversion 1\nsource sha256 ") == nth(&p, "a", 0)->lines);
    CHECK(strstr(nth(&p, "a", 0)->lines, "\nn 3\nseed 0\ncolour red\n") && !strstr(nth(&p, "a", 0)->lines, "threads"));
    char key[65];
    snprintf(key, sizeof key, "%s", nth(&p, "a", 0)->key);
    close_plan(&m, &p);
    CHECK_OK(file_write(input, "other bytes", 11, e)); /* the input's content is part of the key */
    open_plan(&m2, &p2, HEAD "stages:\n  - {id: a, kind: make, source: src}\n", "tiny");
    CHECK(strcmp(key, nth(&p2, "a", 0)->key) != 0);
    close_plan(&m2, &p2);
    CHECK_OK(file_write(input, "bytes", 5, e));
    CHECK_OK(manifest_load(&m,
                           manifest_file("dash: 1\nname: demo\ninputs:\n  src: {path: @, sha256: 00ff}\nstages: [{id: a, kind: make, "
                                         "source: src}]\n"), "tiny", &reg, e));
    CHECK_ERR(plan_make(&p, &m, &reg, dir, e), E_INPUT, "the manifest pins 00ff");
    manifest_free(&m);
}

static void test_run_plan(void)
{
    struct manifest m;
    struct plan p;
    struct plan_summary s;
    struct run_options o = {.only = ""};
    open_plan(&m, &p, PLAN, "tiny");
    world = (struct world){0};
    CHECK_OK(plan_run(&p, &o, &s, e));
    /* use: {20, 21} picked one set, {30, spare} another: 2 sets x 2 seeds ran of 8; 'spare' is the run of k = 30 */
    CHECK_EQ_I(world.ran, 4 + 1 + 3 + 4);
    CHECK(s.total == 17 && s.ran == 12 && s.up_to_date == 5 && s.failed == 0);
    CHECK_STR(nth(&p, "use", 0)->dir, nth(&p, "use", 2)->dir);
    CHECK_STR(nth(&p, "use", 4)->dir, nth(&p, "use", 6)->dir);
    CHECK(strcmp(nth(&p, "use", 0)->dir, nth(&p, "use", 4)->dir) != 0);
    CHECK_STR(node_result(&p, nth(&p, "use", 0), "score"), "7");
    CHECK_STR(node_result(&p, nth(&p, "use", 0), "make.rows"), "3");
    CHECK_STR(node_result(&p, nth(&p, "use", 0), "make.half"), "0.5");
    CHECK(node_result(&p, nth(&p, "use", 0), "make.nothing") == NULL);
    close_plan(&m, &p);
    open_plan(&m, &p, PLAN, "tiny");
    CHECK(nth(&p, "use", 7)->state == RUN_COMPLETE);
    CHECK_OK(plan_run(&p, &o, &s, e));
    CHECK(s.up_to_date == 17 && s.ran == 0 && world.ran == 12);
    o.only = "nothing";
    CHECK_ERR(plan_run(&p, &o, &s, e), E_USAGE, "names no stage");
    o.only = "pick";
    o.force = true;
    CHECK_OK(plan_run(&p, &o, &s, e));
    CHECK(s.total == 4 && s.ran == 4); /* three points and the stage they need */
    close_plan(&m, &p);
}

/* k = 20 and 21 pick the same set, but they are not the same run: what takes a run whole runs for each. */
static void test_whole(void)
{
    struct manifest m;
    struct plan p;
    struct plan_summary s;
    struct run_options o = {.only = ""};
    open_plan(&m, &p,
              HEAD "stages:\n  - {id: one, kind: make, source: src, seed: 78}\n  - {id: p20, kind: pick, from: one, k: 20}\n  - {id: p21, "
              "kind: pick, from: one, k: 21}\n"
              "  - {id: a, kind: again, scores: p20}\n  - {id: b, kind: again, scores: p21}\n  - {id: c, kind: again, scores: p20}\n",
              "tiny");
    world = (struct world){0};
    CHECK_OK(plan_run(&p, &o, &s, e));
    CHECK(s.ran == 5 && s.up_to_date == 1);
    CHECK(strcmp(nth(&p, "a", 0)->key, nth(&p, "b", 0)->key) && !strcmp(nth(&p, "a", 0)->key, nth(&p, "c", 0)->key));
    close_plan(&m, &p);
}

/* A stage that declines, and what needs it, is no failure; one that fails beside it is. */
static void test_declined(void)
{
    struct manifest m;
    struct plan p;
    struct plan_summary s;
    struct run_options o = {.only = ""};
    struct err first = ERR_INIT;
    open_plan(&m, &p,
              HEAD "stages:\n  - {id: one, kind: make, source: src, seed: 79}\n  - {id: pick, kind: pick, from: one, points: [{k: 150}, "
              "{k: 160}, {k: 170}]}\n  - {id: use, kind: use, what: pick}\n", "tiny");
    world = (struct world){.decline_k = 150};
    CHECK(plan_run(&p, &o, &s, &first) == 0);
    CHECK(s.declined == 2 && s.failed == 0 && s.ran == 5 && first.code == E_OK);
    CHECK(nth(&p, "use", 0)->declined && strstr(nth(&p, "use", 0)->error, "k = 150 says nothing"));
    close_plan(&m, &p);
    open_plan(&m, &p,
              HEAD "stages:\n  - {id: one, kind: make, source: src, seed: 80}\n  - {id: pick, kind: pick, from: one, points: [{k: 150}, "
              "{k: 160}]}\n  - {id: use, kind: use, what: pick}\n", "tiny");
    world = (struct world){.decline_k = 150, .fail_k = 160};
    CHECK(plan_run(&p, &o, &s, &first) == 0);
    CHECK(s.declined == 2 && s.failed == 2 && first.code == E_NUMERIC && !nth(&p, "use", 1)->declined);
    close_plan(&m, &p);
}

static void test_failure(void)
{
    struct manifest m;
    struct plan p;
    struct plan_summary s;
    struct run_options o = {.only = ""};
    struct err first = ERR_INIT;
    open_plan(&m, &p,
              HEAD "stages:\n  - {id: one, kind: make, source: src, seed: 77}\n  - {id: pick, kind: pick, from: one, points: [{k: 50}, "
              "{k: 60}]}\n  - {id: use, kind: use, what: pick}\n", "tiny");
    world = (struct world){.fail_k = 50};
    CHECK(plan_run(&p, &o, &s, &first) == 0);
    CHECK(s.failed == 2 && s.ran == 3 && first.code == E_NUMERIC); /* pick k=60 and its use are made all the same */
    CHECK(nth(&p, "pick", 0)->error && strstr(nth(&p, "pick", 0)->error, "k = 50 does not work"));
    CHECK(nth(&p, "use", 0)->error && strstr(nth(&p, "use", 0)->error, "pick"));
    CHECK(!nth(&p, "use", 1)->error && nth(&p, "use", 1)->state == RUN_COMPLETE);
    close_plan(&m, &p);
    open_plan(&m, &p,
              HEAD "stages:\n  - {id: one, kind: make, source: src, seed: 77}\n  - {id: pick, kind: pick, from: one, points: [{k: 50}]}\n",
              "tiny");
    CHECK(nth(&p, "pick", 0)->state == RUN_PARTIAL);
    world.fail_k = 0;
    CHECK_OK(plan_run(&p, &o, &s, e));
    CHECK(s.ran == 1 && s.resumed == 1 && s.failed == 0);
    struct str text = STR_INIT;
    plan_print(&p, false, &text);
    CHECK(strstr(str_c(&text), "2 done, 0 shared, 0 to run") != NULL);
    str_clear(&text);
    plan_print(&p, true, &text);
    CHECK(strstr(str_c(&text), "digraph \"demo\"") && strstr(str_c(&text), "n0 -> n1;"));
    str_free(&text);
    close_plan(&m, &p);
}

static void test_single(void)
{
    struct plan p;
    struct str y = STR_INIT;
    char out[1024];
    path_join(out, dir, "by-flag");
    struct flag_value v[] = {{"source", input}, {"n", "9"}};
    CHECK_OK(plan_single(&p, &reg, "make", v, 2, out, e));
    node_yaml(p.nodes[0], &y);
    CHECK(strstr(str_c(&y), "kind: make\nsource: ") && strstr(str_c(&y), "\nn: 9\nseed: 0\ncolour: red\n"));
    CHECK_STR(p.nodes[0]->dir, out);
    str_free(&y);
    plan_free(&p);
    CHECK_ERR(plan_single(&p, &reg, "make", v + 1, 1, out, e), E_USAGE, "--source is needed");
    plan_free(&p);
}

/* ---- run directories ---- */

static void write_out(const struct run *r, const char *name, const char *text)
{
    char path[1024];
    CHECK_OK(file_write(path_join(path, r->out, name), text, strlen(text), e));
}

static void test_rundir(void)
{
    struct run r;
    char d[1024], key[65], other[65], path[1024];
    int64_t files = 0;
    static const char text[] = "schema 1\nkind make\nn 3\n", text2[] = "schema 1\nkind make\nn 4\n";
    path_join(d, dir, "run");
    run_key(text, key);
    run_key(text2, other);
    CHECK(run_state(d, key) == RUN_NEW);
    CHECK_OK(run_open(&r, d, text, "id: a\n", false, e));
    CHECK_STR(r.key, key);
    CHECK(run_state(d, key) == RUN_PARTIAL && run_state(d, other) == RUN_OTHER);
    struct run second;
    CHECK_ERR(run_open(&second, d, text, "id: a\n", false, e), E_ENV, "LOCK"); /* somebody is at it */
    CHECK_ERR(run_verify(d, &files, e), E_INPUT, "not a complete run");
    write_out(&r, "a.txt", "alpha");
    run_abort(&r, 130);
    CHECK(run_state(d, key) == RUN_PARTIAL && file_exists(path_join(path, d, "out/a.txt")));
    CHECK_OK(run_open(&r, d, text, "id: a\n", false, e)); /* resumed as it stands */
    CHECK(file_exists(path_join(path, d, "out/a.txt")));
    CHECK_OK(mkdir_p(path_join(path, r.out, "sub"), e));
    write_out(&r, "sub/b.txt", "beta");
    CHECK_OK(run_commit(&r, "OK\n", e));
    CHECK(run_state(d, key) == RUN_COMPLETE && !dir_exists(r.work) && !file_exists(path_join(path, d, "LOCK")));
    CHECK_OK(run_verify(d, &files, e));
    CHECK_EQ_I(files, 5); /* RESULT, key.txt, stage.yaml, two outputs */
    CHECK_ERR(run_open(&r, d, text2, "id: a\n", false, e), E_USAGE, "holds a run made with other parameters");
    CHECK(run_state(d, key) == RUN_COMPLETE); /* and was left alone */
    CHECK_OK(run_open(&r, d, text, "id: b\n", false, e)); /* another process was faster */
    CHECK(r.complete && !dir_exists(r.work) && !file_exists(path_join(path, d, "LOCK")));
    CHECK_OK(run_verify(d, &files, e));
    CHECK_OK(file_write(path_join(path, d, "out/sub/b.txt"), "bet!", 4, e));
    CHECK_ERR(run_verify(d, &files, e), E_CHECK, "out/sub/b.txt' differs");
    CHECK(remove(path) == 0);
    CHECK_ERR(run_verify(d, &files, e), E_CHECK, "out/sub/b.txt' is missing");
    CHECK_OK(run_open(&r, d, text2, "id: a\n", true, e)); /* --force */
    CHECK(run_state(d, other) == RUN_PARTIAL && !file_exists(path_join(path, d, "out/a.txt")));
    CHECK_OK(run_commit(&r, "OK\n", e));
    path_join(d, dir, "run2");
    CHECK_OK(run_open(&r, d, text, "id: a\n", false, e));
    run_abort(&r, E_INPUT);
    CHECK(run_state(d, key) == RUN_PARTIAL);
    run_disown(d); /* nothing was made: other parameters may have the folder, without --force */
    CHECK(run_state(d, key) == RUN_NEW && !file_exists(path_join(path, d, "LOCK")));
    CHECK_OK(run_open(&r, d, text2, "id: a\n", false, e));
    CHECK_OK(file_write(path_join(path, r.work, "ckpt"), "x", 1, e));
    run_abort(&r, E_NUMERIC);
    run_disown(d);
    CHECK(run_state(d, other) == RUN_PARTIAL);
}

static void test_bad_rundir(void)
{
    struct run r;
    char d[1024], path[1024], long_path[1000];
    int64_t files;
    static const char text[] = "schema 1\nkind make\n";
    path_join(d, dir, "bad");
    CHECK_OK(run_open(&r, d, text, "", false, e));
    CHECK_OK(run_commit(&r, "OK\n", e));
    path_join(path, d, "OUTPUTS");
    CHECK_OK(file_write(path, "nonsense\n", 9, e));
    CHECK_ERR(run_verify(d, &files, e), E_INPUT, "line 1 is not 'sha256  file'");
    CHECK_OK(file_write(path, "", 0, e));
    CHECK_ERR(run_verify(d, &files, e), E_INPUT, "OUTPUTS");
    static const char outside[] = "0000000000000000000000000000000000000000000000000000000000000000  ../input\n";
    CHECK_OK(file_write(path, outside, sizeof outside - 1, e));
    CHECK_ERR(run_verify(d, &files, e), E_INPUT, "outside the run");
    CHECK_OK(file_write(path_join(path, d, "key.txt"), "schema 9\n", 9, e));
    CHECK_ERR(run_open(&r, d, text, "", true, e), E_USAGE, "made by another version of this program");
    memset(long_path, 'x', sizeof long_path);
    long_path[sizeof long_path - 1] = 0;
    CHECK_ERR(run_open(&r, long_path, text, "", false, e), E_USAGE, "longer than 900 bytes");
}

int main(void)
{
    CHECK(mkdtemp(dir) != NULL);
    path_join(input, dir, "input");
    CHECK_OK(file_write(input, "bytes", 5, e));
    log_set_level(LOG_ERROR);
    prog_quiet(true);
    test_canon();
    test_manifest_errors();
    test_expand();
    test_keys();
    test_run_plan();
    test_whole();
    test_declined();
    test_failure();
    test_single();
    test_rundir();
    test_bad_rundir();
    CHECK_OK(remove_tree(dir, e));
    return test_end();
}
