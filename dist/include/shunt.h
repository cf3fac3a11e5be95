/* What a program can ask of Shunt that knows of it. Nothing is linked: without Shunt these do what libc would. */
#ifndef SHUNT_H
#define SHUNT_H

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The first definition of a name among all that is loaded: that of libshunt.so, which `shunt run` preloads. */
static inline void *shunt_symbol_(const char *name)
{
    return dlsym((void *)0 /* RTLD_DEFAULT */, name);
}

/*
 * Memory to send from without copies: what a call with MSG_ZEROCOPY sends from it over a shunted connection is
 * read by the peer where it is. At least LEN bytes, zero, at the start of a page. NULL, and errno is ENOMEM, when
 * there is none to be had; a program can have 64 of them at a time. See shunt_alloc(3).
 */
static inline void *shunt_alloc(size_t len)
{
    void *(*alloc)(size_t) = (void *(*)(size_t))shunt_symbol_("shunt_alloc");
    const size_t page = 4096;
    void *memory;

    if (alloc)
        return alloc(len);
    if (len > (size_t)-1 - page) {
        errno = ENOMEM;
        return NULL;
    }
    len = (len + page - 1) / page * page;
    memory = aligned_alloc(page, len ? len : page);
    return memory ? memset(memory, 0, len) : NULL;
}

/*
 * Gives memory of shunt_alloc back. What was sent from it and not read yet is copied first, and arrives. 0, or -1 and
 * errno is EINVAL for an address that shunt_alloc has not returned.
 */
static inline int shunt_free(void *memory)
{
    int (*give_back)(void *) = (int (*)(void *))shunt_symbol_("shunt_free");

    if (give_back)
        return give_back(memory);
    free(memory);
    return 0;
}

#endif
