/* Preloaded into a process, this moves its wall clock by as many seconds as the first eight bytes of
   the file $CAMPAIGN_CLOCK say. Clocks that do not step, such as CLOCK_MONOTONIC and CLOCK_BOOTTIME,
   stay as they are, and so does everything that waits. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *offset;
static int (*next_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void start(void) {
    static const long long none;
    const char *path = getenv("CAMPAIGN_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    next_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    offset = mapped == MAP_FAILED ? &none : mapped;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!offset) start(); /* another constructor came first */
    int failed = next_clock_gettime(clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += *offset;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    if (!failed) *at = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
