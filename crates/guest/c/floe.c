/* libfloe: one call, one connection to the agent, one line each way. See floe.h and docs/guest.md. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "floe.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES_MAX 2048
#define TIMEOUT_MS_DEFAULT 180000

static _Thread_local enum floe_code last_code;
static _Thread_local char last_error[512];
static int timeout_ms_of_calls = TIMEOUT_MS_DEFAULT;
/* The process's role in a hierarchical clone: 0 none, 1 has forked the others, 2 was forked. */
static int role;

static int fail(enum floe_code code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    last_code = code;
    return -1;
}

enum floe_code floe_error_code(void) { return last_code; }
const char *floe_error(void) { return last_error; }
void floe_set_timeout(int timeout_ms) { timeout_ms_of_calls = timeout_ms; }

/* Returns milliseconds that continue in a clone where they were in its parent. */
static long long now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

/* Waits until the socket is ready; returns 0 if the time limit has passed. */
static int ready(int fd, short events, long long until_ms)
{
    for (;;) {
        long long left = until_ms < 0 ? -1 : until_ms - now_ms();
        if (until_ms >= 0 && left < 0)
            left = 0;
        struct pollfd poll_fd = {.fd = fd, .events = events};
        int count = poll(&poll_fd, 1, left > 1000000000 ? 1000000000 : (int)left);
        if (count > 0)
            return 1;
        if (count == 0 && left <= 1000000000 && until_ms >= 0)
            return 0;
        if (count < 0 && errno != EINTR)
            return 0;
    }
}

/* Sends a line and reads the answer, without its newline. */
static int ask(const char *line, char *answer, int timeout_ms)
{
    const char *path = getenv("FLOE_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || !*path)
        path = FLOE_SOCKET_PATH;
    if (strlen(path) >= sizeof address.sun_path)
        return fail(FLOE_NO_AGENT, "%s: the path of a socket is shorter", path);
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fail(FLOE_NO_AGENT, "no socket: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        int error = errno;
        close(fd);
        return fail(FLOE_NO_AGENT, "%s: %s; does floe-guest run, and may this user use it?", path, strerror(error));
    }
    long long until_ms = timeout_ms < 0 ? -1 : now_ms() + timeout_ms;
    size_t length = strlen(line), done = 0, have = 0;
    while (done < length) {
        ssize_t count = send(fd, line + done, length - done, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0) {
            close(fd);
            return fail(FLOE_NO_AGENT, "the agent hung up: %s", strerror(errno));
        }
        done += (size_t)count;
    }
    for (;;) {
        if (!ready(fd, POLLIN, until_ms)) {
            close(fd);
            return fail(FLOE_TIMEOUT, "no answer within %d ms; what was asked for may still happen", timeout_ms);
        }
        ssize_t count = recv(fd, answer + have, LINE_BYTES_MAX - have, 0);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0) {
            close(fd);
            return fail(FLOE_NO_AGENT, "the agent hung up");
        }
        have += (size_t)count;
        char *end = memchr(answer, '\n', have);
        if (end) {
            *end = 0;
            close(fd);
            return 0;
        }
        if (have == LINE_BYTES_MAX) {
            close(fd);
            return fail(FLOE_FAILED, "the agent's answer is too long");
        }
    }
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Unescapes a key's value; returns 0 if there is none or it does not fit. */
static int value(const char *line, const char *key, char *out, size_t size)
{
    size_t length = strlen(key);
    for (const char *at = strchr(line, ' '); at; at = strchr(at + 1, ' ')) {
        if (strncmp(at + 1, key, length) || at[1 + length] != '=')
            continue;
        size_t used = 0;
        for (const char *from = at + 2 + length; *from && *from != ' '; from++) {
            int c = (unsigned char)*from;
            if (c == '%') {
                if (hex(from[1]) < 0 || hex(from[2]) < 0)
                    return 0;
                c = hex(from[1]) * 16 + hex(from[2]);
                from += 2;
            }
            if (used + 1 >= size)
                return 0;
            out[used++] = (char)c;
        }
        out[used] = 0;
        return 1;
    }
    return 0;
}

static int number(const char *line, const char *key, unsigned *out)
{
    char text[16], *end;
    if (!value(line, key, text, sizeof text) || !*text)
        return 0;
    unsigned long parsed = strtoul(text, &end, 10);
    if (*end || parsed > 0xffffffffUL)
        return 0;
    *out = (unsigned)parsed;
    return 1;
}

static enum floe_code code_of(const char *word)
{
    static const struct { const char *word; enum floe_code code; } codes[] = {
        {"usage", FLOE_USAGE}, {"unknown-ticket", FLOE_UNKNOWN_TICKET}, {"spent", FLOE_SPENT},
        {"no-room", FLOE_NO_ROOM}, {"not-a-clone", FLOE_NOT_A_CLONE}, {"other-machine", FLOE_OTHER_MACHINE},
        {"unreachable", FLOE_UNREACHABLE}, {"timeout", FLOE_TIMEOUT}, {"busy", FLOE_BUSY},
        {"not-allowed", FLOE_NOT_ALLOWED},
    };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (!strcmp(codes[i].word, word))
            return codes[i].code;
    return FLOE_FAILED;
}

/* Makes one call; stores the answer in `answer` if it has the expected verb. */
static int call(const char *line, const char *expected, char *answer, int timeout_ms)
{
    if (ask(line, answer, timeout_ms) < 0)
        return -1;
    size_t length = strlen(expected);
    if (!strncmp(answer, expected, length) && (!answer[length] || answer[length] == ' ')) {
        last_code = FLOE_OK;
        last_error[0] = 0;
        return 0;
    }
    char code[32] = "", message[384] = "", fix[256] = "";
    if (strncmp(answer, "refused ", 8) || !value(answer, "code", code, sizeof code))
        return fail(FLOE_FAILED, "the agent's answer can't be understood");
    /* a message that does not fit is left out, the code is still set */
    value(answer, "message", message, sizeof message);
    value(answer, "fix", fix, sizeof fix);
    return fail(code_of(code), "%s%s%s", message, *fix ? "; " : "", fix);
}

static int garbled(void) { return fail(FLOE_FAILED, "the agent's answer lacks something; is libfloe older than floe-guest?"); }

/* Makes a line about a ticket. The id came from the agent, and is used only if it looks valid. */
static int about(char *line, const char *verb, const floe_ticket *ticket)
{
    size_t length = strnlen(ticket->id, sizeof ticket->id);
    if (!length || length == sizeof ticket->id || strspn(ticket->id, "0123456789abcdef") != length)
        return fail(FLOE_UNKNOWN_TICKET, "this is no ticket; floe_request_ticket gives one");
    snprintf(line, LINE_BYTES_MAX, "%s version=1 ticket=%s", verb, ticket->id);
    return 0;
}

int floe_request_ticket(unsigned long n, int hierarchical, floe_ticket *ticket)
{
    char line[LINE_BYTES_MAX], answer[LINE_BYTES_MAX + 1];
    memset(ticket, 0, sizeof *ticket);
    snprintf(line, sizeof line, "ticket version=1 clones=%lu hierarchical=%d\n", n, hierarchical ? 1 : 0);
    if (call(line, "ticket", answer, timeout_ms_of_calls) < 0)
        return -1;
    if (!value(answer, "ticket", ticket->id, sizeof ticket->id) || !number(answer, "clones", &ticket->clones) ||
        !number(answer, "each", &ticket->each) || !ticket->each)
        return garbled();
    return (int)ticket->clones;
}

/* Forks the processes of a hierarchical clone: this one has the first number, the forked ones have the others. */
static int spread(const floe_ticket *ticket, unsigned machine)
{
    unsigned first = (machine - 1) * ticket->each + 1;
    unsigned last = machine * ticket->each;
    if (last > ticket->clones)
        last = ticket->clones;
    fflush(NULL);
    for (unsigned id = first + 1; id <= last; id++) {
        pid_t pid = fork();
        if (pid == 0) {
            role = 2;
            return (int)id;
        }
        if (pid < 0) /* otherwise its part of the work would be missing silently */
            return fail(FLOE_FAILED, "process %u of clone %u: %s", id, machine, strerror(errno));
        role = 1;
    }
    return (int)first;
}

int floe_clone(floe_ticket *ticket)
{
    char line[LINE_BYTES_MAX], answer[LINE_BYTES_MAX + 1];
    unsigned id;
    if (about(line, "clone", ticket) < 0)
        return -1;
    strcat(line, "\n");
    /* otherwise every clone would write what is buffered */
    fflush(NULL);
    if (call(line, "cloned", answer, timeout_ms_of_calls) < 0)
        return -1;
    if (!number(answer, "id", &id))
        return garbled();
    if (id == 0) {
        number(answer, "clones", &ticket->running);
        return 0;
    }
    return ticket->each > 1 ? spread(ticket, id) : (int)id;
}

int floe_exit(void)
{
    char answer[LINE_BYTES_MAX + 1];
    fflush(NULL);
    if (role == 2)
        _exit(0);
    while (role == 1 && (wait(NULL) > 0 || errno == EINTR))
        ;
    if (call("exit version=1\n", "done", answer, timeout_ms_of_calls) < 0)
        return -1;
    for (;;) /* until the machine is removed */
        pause();
}

int floe_join_lost(floe_ticket *ticket, int timeout_ms, unsigned *lost)
{
    char line[LINE_BYTES_MAX], answer[LINE_BYTES_MAX + 1], limit[48] = "";
    unsigned ended, were_lost;
    if (about(line, "join", ticket) < 0)
        return -1;
    if (timeout_ms >= 0)
        snprintf(limit, sizeof limit, " timeout-ms=%d", timeout_ms);
    strcat(strcat(line, limit), "\n");
    /* the node enforces the time limit; the agent notices if the node is gone */
    if (call(line, "done", answer, timeout_ms < 0 ? -1 : timeout_ms + 30000) < 0)
        return -1;
    if (!number(answer, "ended", &ended) || !number(answer, "lost", &were_lost))
        return garbled();
    if (lost)
        *lost = were_lost;
    return (int)ended;
}

int floe_join(floe_ticket *ticket, int timeout_ms) { return floe_join_lost(ticket, timeout_ms, NULL); }

int floe_kill(floe_ticket *ticket)
{
    char line[LINE_BYTES_MAX], answer[LINE_BYTES_MAX + 1];
    unsigned ended;
    if (about(line, "kill", ticket) < 0)
        return -1;
    strcat(line, "\n");
    if (call(line, "done", answer, timeout_ms_of_calls) < 0)
        return -1;
    return number(answer, "ended", &ended) ? (int)ended : garbled();
}

int floe_whoami(floe_self *self)
{
    char answer[LINE_BYTES_MAX + 1];
    memset(self, 0, sizeof *self);
    if (call("whoami version=1\n", "me", answer, timeout_ms_of_calls) < 0)
        return -1;
    if (!number(answer, "id", &self->id) || !value(answer, "machine", self->machine, sizeof self->machine) ||
        !value(answer, "parent", self->parent, sizeof self->parent) ||
        !value(answer, "ticket", self->ticket, sizeof self->ticket))
        return garbled();
    return 0;
}

static int moved(const char *line, char *node, unsigned long node_bytes, int timeout_ms)
{
    char answer[LINE_BYTES_MAX + 1], name[256];
    fflush(NULL);
    if (call(line, "moved", answer, timeout_ms) < 0)
        return -1;
    if (!value(answer, "node", name, sizeof name))
        return garbled();
    if (node && node_bytes)
        snprintf(node, node_bytes, "%s", name);
    return 0;
}

int floe_offload_as(const char *to, unsigned cpus, unsigned long long memory_bytes, char *node, unsigned long node_bytes,
                    int timeout_ms)
{
    char line[LINE_BYTES_MAX] = "offload version=1", part[48];
    if (to) {
        size_t length = strnlen(to, 256);
        /* what names of nodes and their addresses are made of; it needs no escapes */
        if (!length || length == 256 ||
            strspn(to, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/-") != length)
            return fail(FLOE_USAGE, "this is no node's name; floe cluster members on the host lists them");
        strcat(strcat(line, " to="), to);
    }
    if (cpus) {
        snprintf(part, sizeof part, " cpus=%u", cpus);
        strcat(line, part);
    }
    if (memory_bytes) {
        snprintf(part, sizeof part, " memory-bytes=%llu", memory_bytes);
        strcat(line, part);
    }
    strcat(line, "\n");
    return moved(line, node, node_bytes, timeout_ms);
}

int floe_offload(const char *to, char *node, unsigned long node_bytes, int timeout_ms)
{
    return floe_offload_as(to, 0, 0, node, node_bytes, timeout_ms);
}

int floe_recall(char *node, unsigned long node_bytes, int timeout_ms)
{
    return moved("recall version=1\n", node, node_bytes, timeout_ms);
}

int floe_which_generation(floe_generation *generation)
{
    memset(generation, 0, sizeof *generation);
    FILE *file = fopen(FLOE_GENERATION_PATH, "re");
    if (!file)
        return fail(FLOE_NO_AGENT, "%s: %s; does floe-guest run?", FLOE_GENERATION_PATH, strerror(errno));
    int found = fscanf(file, "number=%llu id=%36[0-9a-f-]", &generation->number, generation->id);
    fclose(file);
    if (found != 2)
        return fail(FLOE_FAILED, "%s can't be understood", FLOE_GENERATION_PATH);
    return 0;
}
