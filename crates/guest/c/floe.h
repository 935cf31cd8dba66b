/* libfloe: a program clones the whole machine that it runs in (SnowFlock, table 1), or has it go on elsewhere (AMPhone, section 5.3).
 *
 *     floe_ticket ticket;
 *     if (floe_request_ticket(8, 0, &ticket) < 1) ...;   // room for at most 8 clones
 *     int id = floe_clone(&ticket);                      // 0 in the parent, 1..m in the clones
 *     if (id > 0) { work(id); floe_exit(); }             // a clone ends with its work
 *     if (id == 0) floe_join(&ticket, -1);               // the parent waits for all of them
 *
 * Every call blocks until its answer has come or its time limit has passed, returns -1 if it failed, and stores the reason for
 * floe_error_code() and floe_error(). Calls may be made from several threads. All processes and threads of the machine are
 * cloned, whoever calls; only the caller learns which clone it is in.
 */
#ifndef FLOE_H
#define FLOE_H

#ifdef __cplusplus
extern "C" {
#endif

/* The agent's socket, unless FLOE_SOCKET in the environment names another. */
#define FLOE_SOCKET_PATH "/run/floe.sock"
/* The file that says which generation of itself the machine is. It is replaced, so whoever watches it watches its directory. */
#define FLOE_GENERATION_PATH "/run/floe.generation"

/* The right to clone once. It may be copied; the parent's memory is in all clones anyway. */
typedef struct floe_ticket {
    char id[64];
    unsigned clones;  /* number granted: ids go from 1 to this; fewer than requested is normal */
    unsigned each;    /* number of clones that are processes of one machine; 1 unless hierarchical */
    unsigned running; /* number of machines that run; set by floe_clone in the parent */
} floe_ticket;

/* Which machine this is. */
typedef struct floe_self {
    unsigned id;      /* 0 if it is no clone */
    char machine[256];
    char parent[256];
    char ticket[64];
} floe_self;

/* Which generation of itself this machine is. */
typedef struct floe_generation {
    unsigned long long number; /* rises by one each time that a state of the machine was loaded */
    char id[40];               /* another one each time, in every copy */
} floe_generation;

enum floe_code {
    FLOE_OK = 0,
    FLOE_NO_AGENT,       /* floe-guest does not run, or this user may not use it */
    FLOE_TIMEOUT,        /* no answer in time; the request may still be carried out */
    FLOE_UNREACHABLE,    /* the node does not answer, or was restarted */
    FLOE_USAGE,          /* the call itself is wrong */
    FLOE_UNKNOWN_TICKET, /* not a ticket of this machine */
    FLOE_SPENT,          /* the ticket was used already */
    FLOE_NO_ROOM,        /* no host has room, or the machine and its clones have all the clones that they may have */
    FLOE_NOT_A_CLONE,    /* only clones can do this */
    FLOE_OTHER_MACHINE,  /* another process has cloned the machine meanwhile, and this is one of its clones */
    FLOE_BUSY,           /* too many calls at once */
    FLOE_FAILED,         /* the attempt failed */
    FLOE_NOT_ALLOWED     /* its user, or its node's, has not allowed that from inside: see --clones, and --guest-moves */
};

/* Requests room for n clones. With hierarchical set, clones are processes: each cloned machine has as many of them as it
 * has processors. Returns how many are granted (at least 1), also in ticket->clones. */
int floe_request_ticket(unsigned long n, int hierarchical, floe_ticket *ticket);

/* Clones the machine with an unused ticket. Returns 0 in the parent and the clone's number in each clone. */
int floe_clone(floe_ticket *ticket);

/* Ends this clone. Returns only if that fails. With hierarchical clones, the process ends, and the machine once
 * all of its processes have. */
int floe_exit(void);

/* Waits until all clones of a ticket have ended; timeout_ms -1 waits for ever. Returns how many machines there were. Those
 * that crashed are removed, and counted in *lost if it is not NULL. The ticket is then used up. */
int floe_join_lost(floe_ticket *ticket, int timeout_ms, unsigned *lost);
int floe_join(floe_ticket *ticket, int timeout_ms);

/* Ends all clones of a ticket at once. Returns their number. The ticket is then used up, even if it was unused. */
int floe_kill(floe_ticket *ticket);

/* Which machine this is. */
int floe_whoami(floe_self *self);

/* Lends this machine to another node of its cluster, where it goes on: the one of this name or address, or the only other one if `to` is
 * NULL. Returns 0 on that node, whose name is then in node if that is not NULL; all that runs in the machine goes on there. Returns -1
 * where the machine was if it could not move. timeout_ms -1 waits for ever. */
int floe_offload(const char *to, char *node, unsigned long node_bytes, int timeout_ms);

/* The same, with so many processors and so much memory there (whole MiB); 0: as here. It may get them only a moment after this has
 * returned, and does not get what that node has no room for. */
int floe_offload_as(const char *to, unsigned cpus, unsigned long long memory_bytes, char *node, unsigned long node_bytes,
                    int timeout_ms);

/* Has this machine go on on the node that it comes from, as large as it was there. Otherwise as floe_offload. */
int floe_recall(char *node, unsigned long node_bytes, int timeout_ms);

/* Tells which generation of itself this machine is: another one in a clone, in a machine from an image and in one that was woken. A
 * program that draws random numbers by itself compares the id with the one that it has kept, and seeds itself anew if it differs.
 * It reads a file and asks nobody; it fails with FLOE_NO_AGENT if that is not there. */
int floe_which_generation(floe_generation *generation);

/* Sets how long calls other than floe_join wait, in ms; 180000 by default, -1 waits forever. */
void floe_set_timeout(int timeout_ms);

/* Return why the last call of this thread failed: as a code for programs, and as a sentence for people. */
enum floe_code floe_error_code(void);
const char *floe_error(void);

#ifdef __cplusplus
}
#endif
#endif
