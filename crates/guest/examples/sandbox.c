/* Figure 1 (a) of the SnowFlock paper: untrusted code runs in a clone, which is ended afterwards. Whatever the code does to its
 * machine, this machine stays unchanged.
 *
 *     sandbox [COMMAND]
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
    const char *untrusted = argc > 1 ? argv[1] : "rm -rf /etc /bin/sh; echo harm is done";
    floe_ticket ticket;
    if (floe_request_ticket(1, 0, &ticket) < 1)
        return give_up("ticket");
    int id = floe_clone(&ticket);
    if (id < 0)
        return give_up("clone");
    if (id > 0) {
        int status = system(untrusted);
        report("sandbox %d: the command ended with %d", id, status);
        floe_exit();
        return give_up("exit");
    }
    int ended = floe_join(&ticket, -1);
    if (ended < 0)
        return give_up("join");
    report("sandbox 0: %d clone is gone, and /etc is %s", ended, access("/etc", F_OK) ? "gone too" : "still here");
    return 0;
}
