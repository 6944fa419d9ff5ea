/*
 * Token counts of texts that repeat their parts (haystacks, documents, the same text with another needle in it). A text is cut where each
 * known split rule cuts, too, whatever stands on either side, and the counts of the parts are remembered by two 64-bit hashes of their
 * bytes: what tok_count says of the whole, for a fraction of the work. Cuts are (a) between a newline and an ASCII letter after it, when no
 * other white space stands before the newline; (b) before a space between one of . ! ? and an ASCII letter. No rule's piece crosses such a
 * place (letters take along the space or the mark before them, never both; marks end at a space; white space here is one character, so what
 * follows it is not looked at), nothing composes over it under NFC, and no added token holds a space or a newline. Other split rules, and
 * tokenizers with such an added token: the whole text is counted. What is remembered stays with the tokenizer, a table for each thread.
 */
#ifndef MODEL_TOK_COUNTER_H
#define MODEL_TOK_COUNTER_H

#include "model/tok.h"

struct tok_counter;
/* t must live as long. */
int tok_counter_open(struct tok_counter **out, const struct tok *t, bool parse_special, struct err *e);
void tok_counter_close(struct tok_counter *c); /* NULL allowed */
/* As tok_count. May be called by several threads at once. */
int tok_counter_count(struct tok_counter *c, const char *text, size_t n, int64_t *count, struct err *e);

#endif
