/* All examples in one program, selected by the name that it is called by, for small guests. */
#include <libgen.h>
#include <stdio.h>
#include <string.h>

int sandbox_main(int argc, char **argv);
int parallel_main(int argc, char **argv);
int load_main(int argc, char **argv);
int opportunistic_main(int argc, char **argv);

int main(int argc, char **argv)
{
    const char *name = argc > 0 ? basename(argv[0]) : "";
    if (!strcmp(name, "sandbox"))
        return sandbox_main(argc, argv);
    if (!strcmp(name, "parallel"))
        return parallel_main(argc, argv);
    if (!strcmp(name, "load"))
        return load_main(argc, argv);
    if (!strcmp(name, "opportunistic"))
        return opportunistic_main(argc, argv);
    fprintf(stderr, "call it sandbox, parallel, load or opportunistic\n");
    return 2;
}
