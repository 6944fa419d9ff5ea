/* Entry: finds the command, runs it, prints its error, exits with its code. */
#include "cli/cli.h"

#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/prov.h"

const struct cmd commands[] = {
    {"reproduce", "run a manifest: what is missing, then its tables and figures", cmd_reproduce},
    {"model", "info, tensors, tokenize, logprobs, forward, generate, convert", cmd_model},
    {"ppl", "perplexity of a text", cmd_ppl},
    {"data", "pack, passkey, list, verify", cmd_data},
    {"align", "Stage 1: align linear mixers with the teacher's attention", cmd_align},
    {"search", "Stage 2: DASH search over operators", cmd_search},
    {"select", "choose the layers that keep attention, by any method", cmd_select},
    {"distill", "Stage 3: assemble a hybrid and distil it", cmd_distill},
    {"train", "train a small model from scratch, from a manifest", cmd_train},
    {"ruler", "gen, run, score, compare", cmd_ruler},
    {"lmeval", "list, requests, run, compare: MMLU, ARC, PIQA, WinoGrande", cmd_lmeval},
    {"bench", "measure kernels, training steps and inference", cmd_bench},
    {"report", "tables and figures from finished runs, no computing", cmd_report},
    {"regress", "a fresh run against stored values", cmd_regress},
    {"check", "validate a manifest", cmd_check},
    {"status", "runs on disk and what they are for", cmd_status},
    {"verify", "check a run directory's files against its hashes", cmd_verify},
    {"doctor", "what this machine and build can do", cmd_doctor},
};
const size_t n_commands = ARRAY_LEN(commands);

static void usage(FILE *f)
{
    fprintf(f, "usage: dashlab COMMAND [OPTIONS]\n\nHybrid-attention conversion: search, selection, distillation, evaluation.\n\n");
    for (size_t i = 0; i < n_commands; i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(f, "\n'dashlab help COMMAND' or 'dashlab COMMAND --help' for the options of one.\n");
}

static int run_command(int argc, char **argv, struct err *e)
{
    const char *name = argv[1];
    if (!strcmp(name, "--version") || !strcmp(name, "version")) {
        printf("dashlab %s (%s%s, %s)\n", build_version, build_commit, build_dirty ? ", modified" : "", build_compiler);
        return 0;
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || (!strcmp(name, "help") && argc < 3)) {
        usage(stdout);
        return 0;
    }
    bool help = !strcmp(name, "help"); /* `help data pack` is `data pack --help` */
    char *of[2] = {argc > 3 ? argv[3] : (char *)"--help", (char *)"--help"};
    if (help)
        name = argv[2];
    for (size_t i = 0; i < n_commands; i++)
        if (!strcmp(commands[i].name, name))
            return help ? commands[i].run(argc > 3 ? 2 : 1, of, e) : commands[i].run(argc - 2, argv + 2, e);
    const char *words[64];
    for (size_t i = 0; i < n_commands; i++)
        words[i] = commands[i].name;
    const char *near = nearest_word(name, words, n_commands);
    return ERR(e, E_USAGE, "unknown command '%s'%s%s%s; 'dashlab help' lists them", name, near ? ", did you mean '" : "", near ? near : "",
               near ? "'?" : "");
}

int main(int argc, char **argv)
{
    setlocale(LC_ALL, "C");
    prov_set_argv(argc, argv);
    interrupt_install();
    signal(SIGXFSZ, SIG_IGN); /* a file above the limit is an error with a message, not the end of the process */
    if (argc < 2) {
        usage(stderr);
        return E_USAGE;
    }
    struct err e = ERR_INIT;
    int rc = run_command(argc, argv, &e);
    if (rc != 0)
        fprintf(stderr, "dashlab: %s%s\n", strchr(e.msg, '\n') ? "" : e.code == E_CHECK ? "" : "error: ", e.msg);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "dashlab: error: cannot write to standard output\n");
        return rc != 0 ? (int)e.code : E_ENV;
    }
    return rc != 0 ? (int)e.code : 0;
}
