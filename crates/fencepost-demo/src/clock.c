/* Adds to the wall clock of a program: the offset is in a file, which the program that started it may change. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Seconds to add; and, unless zero, the microseconds since 1970 at which it stands still. */
static volatile long long *offset;

__attribute__((constructor)) static void load(void) {
    int file = open(getenv("FENCEPOST_CLOCK"), O_RDONLY);
    void *map = mmap(0, 2 * sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || map == MAP_FAILED) abort();
    offset = map;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int answer = syscall(SYS_clock_gettime, id, now);
    if (answer == 0 && id == CLOCK_REALTIME && offset) {
        long long still = offset[1];
        if (still) {
            now->tv_sec = still / 1000000;
            now->tv_nsec = still % 1000000 * 1000;
        } else {
            now->tv_sec += offset[0];
        }
    }
    return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (to) *to = precise.tv_sec;
    return precise.tv_sec;
}
