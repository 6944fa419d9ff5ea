/*
 * Run directories, keyed by content.
 *
 *   key.txt      the lines whose SHA-256 is the key (diff two runs to see why they differ)
 *   stage.yaml   the stage with every parameter after defaults
 *   out/         artifacts, among them out/result.json: a flat object of numbers and strings
 *   work/        checkpoints and partial results; removed when the run is complete
 *   RESULT       "OK" or "CHECK-FAILED" and reasons
 *   OUTPUTS      sha256sum format of key.txt, stage.yaml, RESULT and out/...; renamed into place last: it exists <=> the run is complete
 *   timing.json, provenance.json, log.txt   never compared
 */
#ifndef EXPERIMENTS_RUNDIR_H
#define EXPERIMENTS_RUNDIR_H

#include "core/fs.h"

enum run_state { RUN_NEW, RUN_PARTIAL, RUN_COMPLETE, RUN_OTHER /* holds another key */ };
struct run {
    char dir[1024], out[1024], work[1024], key[65];
    double t0_unix, t0, before_s; /* seconds of earlier, interrupted attempts */
    bool complete;                /* set by run_open: there is nothing to do, and no lock is held */
    bool declined;                /* set by a kind that fails because there is nothing to do: its error is the reason, not a failure */
};

void run_key(const char *key_text, char key[65]);
enum run_state run_state(const char *dir, const char *key);
/* E_USAGE for a directory that another version of this program made (its key.txt begins otherwise). */
int run_readable(const char *dir, struct err *e);
/*
 * Opens for running: takes the lock, makes the folders, writes key.txt and stage.yaml. Partial runs with the same key are resumed as
 * they stand; a complete one (another process may have completed it a moment ago) is left alone and r->complete set, unless force. A
 * directory with another key is E_USAGE unless force, which removes it. A directory made by a newer program is E_USAGE.
 */
int run_open(struct run *r, const char *dir, const char *key_text, const char *stage_yaml, bool force, struct err *e);
/* Hashes, writes RESULT and OUTPUTS, timing and provenance, removes work/, drops the lock. */
int run_commit(struct run *r, const char *result, struct err *e);
/* After a kill between the last rename and the end of run_commit: drops a stale lock and temporary files of a complete run. A live lock
 * is left alone. */
void run_tidy(const char *dir);
/* Keeps what is there (resumable), records the time spent, drops the lock. */
void run_abort(struct run *r, int exit_code);
/* A run that failed before it made anything gives up its key: its folder may be used with other parameters, as when a mistake was
 * corrected. */
void run_disown(const char *dir);
/* Checks every file against OUTPUTS: E_CHECK naming the first that differs or is missing; E_INPUT when the run is not complete. */
int run_verify(const char *dir, int64_t *n_files, struct err *e);
double run_seconds(const char *dir); /* from timing.json; 0 when unknown */
char *run_file(char dst[1024], const struct run *r, const char *rel); /* dir/rel */

#endif
