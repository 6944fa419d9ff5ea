/*
 * Provenance: what ran where. Written to provenance.json (never compared byte for byte): argv, version, git commit and dirty flag baked in
 * at build, compiler, flags, libraries, device, threads, determinism level, host, start and end, exit status.
 */
#ifndef CORE_PROV_H
#define CORE_PROV_H

#include "core/jwrite.h"

extern const char *const build_version; /* "0.1.0" */
extern const char *const build_commit;  /* git hash or "unknown" */
extern const bool build_dirty;
extern const char *const build_compiler;
extern const char *const build_flags;

void prov_set_argv(int argc, char **argv);
void prov_set(const char *key, const char *value); /* extra facts: device, determinism, tokenizer family; last one wins */
void prov_write(struct jw *w);                     /* the object's members (caller opens and closes it) */
int prov_save(const char *path, double start_unix_s, double end_unix_s, int exit_code, struct err *e);

/* SIGINT and SIGTERM set a flag; long loops poll it, checkpoint, and return E_INTERRUPTED. A second SIGINT ends the process. */
void interrupt_install(void);
bool interrupted(void);

#endif
