/* data pack, passkey, list, verify. */
#include <stdio.h>
#include <string.h>

#include "cli/ids.h"
#include "cli/lmeval_glue.h"
#include "cli/stages.h"
#include "model/data.h"

static int data_pack(int argc, char **argv, struct err *e)
{
    return cli_stage(&kind_pack, "data pack", "Packs RULER samples and text into a token shard (RUN/out).",
                     "  dashlab data pack --model M --text essays.txt --seq 512 --out shards/text\n  dashlab data pack --model M --ruler "
                     "data/ruler --text experiments/tiny/prose --out shards/train", argc, argv, e);
}

static int list_benchmarks(const char *data, bool json, struct err *e)
{
    char dir[1024];
    bool from_bundle;
    struct benchmark_count n;
    struct str out = STR_INIT;
    TRY(lmeval_data(data, dir, &from_bundle, e));
    int rc = lmeval_sources(dir, from_bundle, json, &out, &n, e);
    if (rc == 0 && !json)
        printf("\nbenchmark files under %s: %d as expected, %d with the first documents only, %d that differ, %d missing\n", dir, n.ok,
               n.subset, n.wrong, n.missing);
    if (rc == 0)
        print_str(&out);
    if (rc == 0 && json)
        printf("\n");
    str_free(&out);
    return rc;
}

/* A folder of benchmark files: all that are there must have the expected content. */
static int verify_benchmarks(const char *dir, bool json, struct err *e)
{
    struct benchmark_count n;
    struct str out = STR_INIT;
    int rc = lmeval_sources(dir, false, json, &out, &n, e);
    if (rc == 0 && n.ok + n.wrong == 0)
        rc = ERR(e, E_INPUT, "'%s' holds neither a token shard (shard.json) nor files of a benchmark", dir);
    else if (rc == 0) {
        print_str(&out);
        if (!json)
            printf("%d files as expected, %d that differ, %d missing\n", n.ok, n.wrong, n.missing);
        rc = n.wrong ? ERR(e, E_CHECK, "%d benchmark files differ from what is expected", n.wrong) : 0;
    }
    str_free(&out);
    return rc;
}

static int data_list(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const char *data = NULL;
    const struct opt opts[] = {O_STR("data", &data, "DIR", "where benchmark files are; default: $DASHLAB_DATA, then the bundled ones",
                                     "Data"), COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab data list [--data DIR]",
                                  .about = "Bundled data, and every file of MMLU, ARC, PIQA and WinoGrande: found or missing, where it "
                                  "comes from, which SHA-256 to expect.",
                                  .examples = "  dashlab data list\n  dashlab data list --data benchmarks --json", .opts = opts,
                                  .n_opts = ARRAY_LEN(opts)};
    static const struct {
        const char *what, *path;
    } bundled[] = {{"RULER haystack (public-domain novels)", "ruler/data/essay.txt.zst"},
                   {"RULER words, wonderwords 2.2.0", "ruler/data/wonderwords-2.2.0"},
                   {"RULER words, wonderwords 3.0.0", "ruler/data/wonderwords-3.0.0"},
                   {"RULER sentence data (Punkt, English)", "ruler/data/punkt_english"},
                   {"training prose (public-domain novels)", "experiments/tiny/prose"},
                   {"more of it, for haystacks of training", "experiments/tiny/novels"},
                   {"tiny teacher", "experiments/tiny/teacher"},
                   {"another one, by teacher.yaml", "experiments/tiny/teacher2"},
                   {"MMLU, ARC, PIQA, WinoGrande: first documents", "lmeval/data"},
                   {"published layer sets", "baselines/index_sets.tsv"},
                   {"published scores", "reports/published"}};
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    int missing = 0;
    for (size_t i = 0; i < ARRAY_LEN(bundled); i++) {
        char path[1024];
        struct err why = ERR_INIT;
        bool have = cli_bundled(path, bundled[i].path, &why) == 0;
        if (!c.json)
            printf("%-46s %s\n", bundled[i].what, have ? path : "MISSING");
        missing += !have;
    }
    TRY(list_benchmarks(data, c.json, e));
    return missing ? ERR(e, E_INPUT, "%d bundled files are missing", missing) : 0;
}

static int data_verify(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const struct opt opts[] = {COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab data verify DIR",
                                  .about = "Checks a token shard (sizes, ids, masks, hashes), or a folder of benchmark files against "
                                  "their expected content.",
                                  .examples = "  dashlab data verify shards/train/out\n  dashlab data verify benchmarks", .opts = opts,
                                  .n_opts = ARRAY_LEN(opts), .min_pos = 1, .max_pos = 1};
    const char *pos[1];
    char path[1024], where[1024];
    size_t n;
    bool done;
    struct shard s;
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n, &done, e));
    if (done)
        return 0;
    snprintf(path, sizeof path, "%s", pos[0]);
    if (!file_exists(path_join(where, path, "shard.json")))
        path_join(path, pos[0], "out");
    if (!file_exists(path_join(where, path, "shard.json")))
        return verify_benchmarks(pos[0], c.json, e);
    TRY(shard_open(&s, path, true, e));
    printf("%s: %" PRId64 " rows of %" PRId64 ", %" PRId64 " tokens, %.1f %% of them answers: as recorded\n", path, s.rows, s.seq, s.tokens,
           100.0 * (double)s.answer_tokens / (double)s.tokens);
    shard_close(&s);
    return 0;
}

int cmd_data(int argc, char **argv, struct err *e)
{
    static const struct cmd subs[] = {{"pack", "token shard from RULER samples and text", data_pack},
                                      {"passkey", "passkeys hidden in text (FlashMorph's data)", data_passkey},
                                      {"list", "what is bundled and found", data_list}, {"verify", "check a token shard", data_verify}};
    return cli_sub("data", subs, ARRAY_LEN(subs), argc, argv, e);
}
