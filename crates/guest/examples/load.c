/* Figure 1 (c): one clone more when there is much to do, one fewer when there is little. Lines on its input give the load:
 * `high`, `low`; the end of the input ends all workers.
 *
 *     load < FILE
 */
#include "floe.h"
#include "report.h"

#define WORKERS_MAX 64

static int give_up(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, floe_error());
    return 1;
}

/* A worker. A real one would do its work here. */
static void accept_work(int number)
{
    report("load: worker %d is ready", number);
    for (;;)
        pause();
}

int main(void)
{
    floe_ticket workers[WORKERS_MAX];
    int count = 0, number = 0;
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "high", 4) && count < WORKERS_MAX) {
            if (floe_request_ticket(1, 0, &workers[count]) < 1)
                return give_up("ticket");
            number++;
            int id = floe_clone(&workers[count]);
            if (id < 0)
                return give_up("clone");
            if (id > 0)
                accept_work(number);
            count++;
        } else if (!strncmp(line, "low", 3) && count > 0) {
            int victim = rand() % count;
            if (floe_kill(&workers[victim]) < 0)
                return give_up("kill");
            workers[victim] = workers[--count];
        }
        report("load 0: %d workers", count);
    }
    while (count > 0)
        if (floe_kill(&workers[--count]) < 0)
            return give_up("kill");
    report("load 0: done");
    return 0;
}
