/* Figure 1 (d): a job that repeatedly uses whatever room there is, until it is done.
 *
 *     opportunistic [PIECES [AT-ONCE]]
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
    int pieces = argc > 1 ? atoi(argv[1]) : 8, at_once = argc > 2 ? atoi(argv[2]) : 1000, done = 0;
    while (done < pieces) {
        floe_ticket ticket;
        int left = pieces - done;
        if (floe_request_ticket((unsigned long)(left < at_once ? left : at_once), 0, &ticket) < 1) {
            if (floe_error_code() != FLOE_NO_ROOM)
                return give_up("ticket");
            sleep(1); /* others use all of it */
            continue;
        }
        int id = floe_clone(&ticket);
        if (id < 0)
            return give_up("clone");
        if (id > 0) {
            report("opportunistic: piece %d is done", done + id);
            floe_exit();
            return give_up("exit");
        }
        unsigned lost;
        if (floe_join_lost(&ticket, -1, &lost) < 0)
            return give_up("join");
        if (!lost && ticket.running == ticket.clones)
            done += (int)ticket.clones; /* otherwise repeat these pieces: it is unknown which are missing */
    }
    report("opportunistic 0: %d pieces are done", done);
    return 0;
}
