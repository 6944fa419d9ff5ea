/* data pack, passkey, list, verify. */
#include <stdio.h>
#include <string.h>

#include "cli/stages.h"
#include "model/data.h"

static int data_pack(int argc, char **argv, struct err *e)
{
    return cli_stage(&kind_pack, "data pack", "Packs RULER samples and text into a token shard (RUN/out).",
                     "  dashlab data pack --model M --text essays.txt --seq 512 --out shards/text\n  dashlab data pack --model M --ruler data/ruler --text experiments/tiny/prose --out shards/train", argc, argv, e);
}

static int data_list(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const struct opt opts[] = {COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab data list", .about = "Bundled benchmark and training data, and where it was found.", .examples = "  dashlab data list", .opts = opts, .n_opts = ARRAY_LEN(opts)};
    static const struct {
        const char *what, *path;
    } bundled[] = {{"RULER haystack (public-domain novels)", "ruler/data/essay.txt.zst"},
                   {"RULER words, wonderwords 2.2.0", "ruler/data/wonderwords-2.2.0"},
                   {"RULER words, wonderwords 3.0.0", "ruler/data/wonderwords-3.0.0"},
                   {"RULER sentence data (Punkt, English)", "ruler/data/punkt_english"},
                   {"training prose (public-domain novels)", "experiments/tiny/prose"},
                   {"tiny teacher", "experiments/tiny/teacher"},
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
        printf("%-40s %s\n", bundled[i].what, have ? path : "MISSING");
        missing += !have;
    }
    return missing ? ERR(e, E_INPUT, "%d bundled files are missing", missing) : 0;
}

static int data_verify(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const struct opt opts[] = {COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab data verify DIR", .about = "Checks a token shard: sizes, ids, masks, hashes.", .examples = "  dashlab data verify shards/train/out", .opts = opts, .n_opts = ARRAY_LEN(opts),
                                  .min_pos = 1, .max_pos = 1};
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
    TRY(shard_open(&s, path, true, e));
    printf("%s: %" PRId64 " rows of %" PRId64 ", %" PRId64 " tokens, %.1f %% of them answers: as recorded\n", path, s.rows, s.seq, s.tokens, 100.0 * (double)s.answer_tokens / (double)s.tokens);
    shard_close(&s);
    return 0;
}

int cmd_data(int argc, char **argv, struct err *e)
{
    static const struct cmd subs[] = {{"pack", "token shard from RULER samples and text", data_pack}, {"passkey", "passkeys hidden in text (FlashMorph's data)", data_passkey}, {"list", "what is bundled and found", data_list}, {"verify", "check a token shard", data_verify}};
    return cli_sub("data", subs, ARRAY_LEN(subs), argc, argv, e);
}
