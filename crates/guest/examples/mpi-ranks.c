/* An ordinary MPI program, which knows nothing of clones. It prints where each rank runs, computes pi on all ranks, and
 * checks that a larger reduction is correct.
 *
 *   mpicc -o mpi-ranks mpi-ranks.c
 *   floe-mpirun -n 4 ./mpi-ranks
 *   floe-mpirun -n 4 ./mpi-ranks fail 2      (rank 2 ends the job with status 7)
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Intervals of the integral of 4 / (1 + x*x) from 0 to 1. */
#define INTERVALS 100000
/* Numbers that all ranks add up: more than fit into one message of any transport. */
#define NUMBERS 65536
/* How a rank fails. */
#define FAILURE 7

int main(int argc, char **argv)
{
    char host[MPI_MAX_PROCESSOR_NAME] = "";
    int rank, size, length, failing = -1;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    if (argc == 3 && strcmp(argv[1], "fail") == 0)
        failing = atoi(argv[2]);
    printf("rank %d of %d on %s\n", rank, size, host);
    fflush(stdout);

    double part = 0, pi = 0;
    for (int i = rank; i < INTERVALS; i += size) {
        double x = (i + 0.5) / INTERVALS;
        part += 4 / (1 + x * x) / INTERVALS;
    }
    MPI_Allreduce(&part, &pi, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);

    double *numbers = malloc(NUMBERS * sizeof *numbers);
    if (!numbers)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < NUMBERS; i++)
        numbers[i] = (double)i * (rank + 1);
    MPI_Allreduce(MPI_IN_PLACE, numbers, NUMBERS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    int wrong = 0;
    for (int i = 0; i < NUMBERS; i++)
        wrong += numbers[i] != (double)i * size * (size + 1) / 2;
    free(numbers);

    char *hosts = malloc((size_t)size * sizeof host);
    if (!hosts)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Gather(host, sizeof host, MPI_CHAR, hosts, sizeof host, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        int different = 0;
        for (int i = 0; i < size; i++) {
            int first = 1;
            for (int j = 0; j < i; j++)
                first &= strcmp(hosts + i * sizeof host, hosts + j * sizeof host) != 0;
            different += first;
        }
        printf("%d ranks on %d hosts: pi is %.6f, %d of %d sums are wrong\n", size, different, pi, wrong, NUMBERS);
    }
    free(hosts);
    if (rank == failing) {
        fprintf(stderr, "rank %d fails\n", rank);
        MPI_Abort(MPI_COMM_WORLD, FAILURE);
    }
    MPI_Finalize();
    return wrong != 0;
}
