/* Figure 1 (b): a job on n clones, each of which has everything that the parent has prepared. Counts the primes below a limit.
 *
 *     parallel [CLONES [LIMIT [hierarchical]]]
 */
#include "floe.h"
#include "report.h"

static int give_up(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, floe_error());
    return 1;
}

int main(int argc, char **argv)
{
    unsigned long wanted = argc > 1 ? strtoul(argv[1], NULL, 10) : 4;
    unsigned long limit = argc > 2 ? strtoul(argv[2], NULL, 10) : 100000;
    int hierarchical = argc > 3 && !strcmp(argv[3], "hierarchical");
    floe_ticket ticket;
    if (floe_request_ticket(wanted, hierarchical, &ticket) < 1)
        return give_up("ticket");
    /* what is made here is in every clone's memory, so it need not be sent */
    unsigned char *composite = calloc(limit + 1, 1);
    if (!composite)
        return 1;
    for (unsigned long p = 2; p * p <= limit; p++)
        if (!composite[p])
            for (unsigned long q = p * p; q <= limit; q += p)
                composite[q] = 1;
    int id = floe_clone(&ticket);
    if (id < 0)
        return give_up("clone");
    if (id > 0) {
        /* there may be fewer clones than requested: divide by what was granted */
        unsigned long part = limit / ticket.clones + 1, from = part * (unsigned)(id - 1), count = 0;
        for (unsigned long n = from; n < from + part && n <= limit; n++)
            count += n >= 2 && !composite[n];
        report("parallel %d of %u: %lu primes from %lu", id, ticket.clones, count, from);
        floe_exit();
        return give_up("exit");
    }
    unsigned lost;
    int ended = floe_join_lost(&ticket, -1, &lost);
    if (ended < 0)
        return give_up("join");
    report("parallel 0: %d of %u machines ended, %u lost", ended, ticket.running, lost);
    return lost != 0;
}
