/* The live progress line and the log share stderr: the log takes the line away, writes its own, and puts it back. For prog.c alone. */
#ifndef CORE_LIVE_H
#define CORE_LIVE_H

/* Draws line (no newline) in place of the one before; NULL or "" removes it. */
void live_draw(const char *line);
/* A whole line that stays, under the same lock as the log's. */
void live_print(const char *line);

#endif
