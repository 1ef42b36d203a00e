/*
 * A closed-loop load over epoll: a number of connections, a number of requests in flight on each.
 *
 *   load PROTOCOL ADDRESS PORT PID CONNECTIONS DEPTH WARM COUNT SECONDS FILE [GREETING]
 *   load walk ADDRESS PORT PID CONNECTIONS DEPTH WARM COUNT SECONDS FILE STEP SPAN
 *   load transaction|wake ADDRESS PORT PID CONNECTIONS DEPTH WARM COUNT SECONDS FILE SECOND
 *
 * PROTOCOL  remoting: FILE is one frame; wherever the number 100000000 stands in it, each request
 *           gets a number of its own, and answers are matched by it in whatever order they come.
 *           resp: FILE is one Redis command; answers come in order.
 *           nats: FILE is one publication that asks for an answer at a subject which ends with the
 *           number; 200000000 becomes the connection's own number.
 *           walk: as remoting, with a pull of STEP messages in FILE. Each connection reads DEPTH
 *           queues, one pull in flight on each: 400000000 becomes the queue's number, 300000000
 *           the offset, which starts at 0 and after SPAN messages starts again.
 *           transaction: as remoting, with a half message in FILE and its end in SECOND. The end
 *           names the half message: 300000000 becomes its queue offset, 500000000000000000 its
 *           place in the log. Both answers together count as one.
 *           wake: as remoting, with a pull in FILE and a send in SECOND. CONNECTIONS pull and as
 *           many others send; 400000000 becomes the queue's number, one for each pull in flight,
 *           300000000 the offset at the queue's end. The send follows its pull, whose answer is
 *           the one that counts.
 * GREETING  a file sent once on each connection before anything else
 * PID       the server's process, whose CPU over the window is reported
 * WARM      answers before the window opens; it closes COUNT answers later, still under load, and
 *           then answers in flight are awaited. After SECONDS it closes with the answers so far.
 *
 * Prints one line of JSON. An answer that does not report success is counted as an error, and the
 * first one is shown on stderr; the program then ends with 1. A broker that asks for patience
 * (SYSTEM_BUSY) has answered, but stored nothing: such answers are counted on their own.
 * LOAD_ANSWER_CODE in the environment is the code that every answer must have instead of 0.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NUMBER "100000000"
#define NUMBER_DIGITS 9
#define NUMBER_FIRST 100000000u
#define NUMBER_COUNT 900000000u
#define SYSTEM_BUSY 2
#define CONNECTION_NUMBER "200000000"
#define CONNECTION_FIRST 200000000u
#define OFFSET_NUMBER "300000000"
#define QUEUE_NUMBER "400000000"
#define LOG_NUMBER "500000000000000000"
#define LOG_DIGITS 18
#define PULL_NOT_FOUND 19
#define PULL_OFFSET_MOVED 21
#define PLACES_MAX 64
#define INPUT_BYTES (256 << 10)
#define DRAIN_SECONDS 10.0
#define EVENTS_MAX 256
/* Latencies fall into 32 buckets for each power of two of nanoseconds: 3 % apart. */
#define SUB_BITS 5
#define BUCKET_COUNT ((64 - SUB_BITS + 1) << SUB_BITS)

enum protocol { REMOTING, RESP, NATS, WALK, TRANSACTION, WAKE };
static const char *const PROTOCOLS[] = {"remoting", "resp", "nats", "walk", "transaction", "wake"};

/* Bytes to send, and where they hold a number to be replaced. */
struct text {
    char *data;
    size_t byte_count;
    size_t places[PLACES_MAX];
    uint32_t place_count;
};

struct slot {
    double sent_at;
    uint32_t number;
    uint32_t turn;
    int in_flight, refused;
    /* Of a transaction or a wake: whether the second frame is out, and what the answer told. */
    int is_second;
    uint64_t queue_offset, log_offset;
};

struct connection {
    int fd;
    int waits_to_send;
    char *input, *output, *frame;
    size_t input_size, input_used, output_start, output_end;
    struct slot *slots;
    uint32_t oldest, index;
    /* Of a wake: who sends for the one who pulls, and the other way round. */
    struct connection *partner;
};

static struct {
    enum protocol protocol;
    pid_t server;
    uint32_t connections, depth;
    uint64_t warm, count;
    long answer_code;
    double seconds;
    struct text frame, greeting;
    /* Where the frame of a walk names the offset and the queue, and how the offset goes on. */
    struct text offset, queue;
    uint32_t step, span;
    /* The second frame of a transaction or a wake. */
    struct text second, second_offset, second_queue, second_log;
} load;

static struct {
    uint64_t answered, errors, busy, in_flight, reads, answer_bytes;
    uint64_t reads_before, reads_counted, bytes_before, bytes_counted;
    int opened, closed;
    double wall_start, wall_end, server_start, server_end, own_start, own_end;
    uint64_t histogram[BUCKET_COUNT];
} run;

static void fail(const char *what)
{
    fprintf(stderr, "load: %s: %s\n", what, errno ? strerror(errno) : "not as expected");
    exit(1);
}

static void *allocated(size_t byte_count)
{
    void *memory = calloc(1, byte_count);
    if (memory == NULL)
        fail("calloc");
    return memory;
}

static double seconds(clockid_t clock)
{
    struct timespec now;
    if (clock_gettime(clock, &now) != 0)
        fail("clock_gettime");
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* utime + stime of all its threads, ended ones too, finer than the ticks of /proc/PID/stat. */
static double server_cpu(void)
{
    clockid_t clock;
    errno = clock_getcpuclockid(load.server, &clock);
    if (errno != 0)
        fail("the server's CPU clock");
    return seconds(clock);
}

static void count_latency(double latency_s)
{
    uint64_t ns = latency_s > 0 ? (uint64_t)(latency_s * 1e9) : 0;
    int power = ns >> SUB_BITS ? 63 - __builtin_clzll(ns) - SUB_BITS : 0;
    uint64_t bucket = power ? ((uint64_t)power << SUB_BITS) + (ns >> power) : ns;
    run.histogram[bucket]++;
}

static double latency_us(double share)
{
    uint64_t total = 0, seen = 0;
    for (int bucket = 0; bucket < BUCKET_COUNT; bucket++)
        total += run.histogram[bucket];
    for (uint64_t bucket = 0; bucket < BUCKET_COUNT; bucket++) {
        seen += run.histogram[bucket];
        if (total > 0 && (double)seen >= share * (double)total) {
            uint64_t power = bucket >> SUB_BITS;
            uint64_t low = bucket & ((1 << SUB_BITS) - 1);
            uint64_t ns = power > 1 ? (low | 1 << SUB_BITS) << (power - 1) : bucket;
            return (double)ns / 1e3;
        }
    }
    return 0;
}

static void open_window(void)
{
    run.opened = 1;
    run.reads_before = run.reads;
    run.bytes_before = run.answer_bytes;
    run.server_start = server_cpu();
    run.own_start = seconds(CLOCK_PROCESS_CPUTIME_ID);
    run.wall_start = seconds(CLOCK_MONOTONIC);
}

static void close_window(void)
{
    run.closed = 1;
    run.wall_end = seconds(CLOCK_MONOTONIC);
    run.server_end = server_cpu();
    run.own_end = seconds(CLOCK_PROCESS_CPUTIME_ID);
    run.reads_counted = run.reads - run.reads_before;
    run.bytes_counted = run.answer_bytes - run.bytes_before;
}

/* ---- requests ---- */

static void read_text(struct text *text, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        fail(path);
    text->byte_count = (size_t)ftell(file);
    text->data = allocated(text->byte_count + 1);
    rewind(file);
    if (text->byte_count == 0 || fread(text->data, 1, text->byte_count, file) != text->byte_count)
        fail(path);
    fclose(file);
}

static void find_places(struct text *text, const char *digits)
{
    const char *next = text->data;
    while (text->place_count < PLACES_MAX) {
        size_t left = text->byte_count - (size_t)(next - text->data);
        next = memmem(next, left, digits, NUMBER_DIGITS);
        if (next == NULL)
            break;
        text->places[text->place_count++] = (size_t)(next - text->data);
        next += NUMBER_DIGITS;
    }
}

static void put_digits(char *data, const struct text *text, uint64_t number, int digit_count)
{
    char digits[LOG_DIGITS];
    for (int i = digit_count - 1; i >= 0; i--, number /= 10)
        digits[i] = (char)('0' + number % 10);
    for (uint32_t i = 0; i < text->place_count; i++)
        memcpy(data + text->places[i], digits, (size_t)digit_count);
}

static void put_number(char *data, const struct text *text, uint32_t number)
{
    put_digits(data, text, number, NUMBER_DIGITS);
}

static uint32_t next_number(struct slot *slot, uint32_t index)
{
    /* The number names the slot; the turn makes it differ from the slot's earlier requests. */
    uint32_t turns = NUMBER_COUNT / load.depth;
    return slot->number = NUMBER_FIRST + index + load.depth * (slot->turn++ % turns);
}

static uint32_t queue_of(const struct connection *peer, uint32_t index)
{
    return peer->index * load.depth + index;
}

/* The end of a transaction, or the send that wakes a pull. */
static void queue_second(struct connection *peer, uint32_t index, const struct slot *told)
{
    struct slot *slot = &peer->slots[index];
    char *frame = peer->output + peer->output_end;
    memcpy(frame, load.second.data, load.second.byte_count);
    put_number(frame, &load.second, next_number(slot, index));
    put_digits(frame, &load.second_offset, told->queue_offset, NUMBER_DIGITS);
    put_digits(frame, &load.second_log, told->log_offset, LOG_DIGITS);
    put_number(frame, &load.second_queue, queue_of(peer, index));
    slot->in_flight = slot->is_second = 1;
    peer->output_end += load.second.byte_count;
    run.in_flight++;
}

static void queue_request(struct connection *peer, uint32_t index, double now)
{
    struct slot *slot = &peer->slots[index];
    char *frame = peer->output + peer->output_end;
    memcpy(frame, peer->frame, load.frame.byte_count);
    put_number(frame, &load.frame, next_number(slot, index));
    if (load.protocol == WAKE) {
        put_digits(frame, &load.offset, slot->queue_offset, NUMBER_DIGITS);
        put_number(frame, &load.queue, queue_of(peer, index));
    }
    if (load.protocol == WALK) {
        put_number(frame, &load.offset, (slot->turn - 1) % (load.span / load.step) * load.step);
        put_number(frame, &load.queue, index);
    }
    slot->sent_at = now;
    slot->in_flight = 1;
    slot->is_second = 0;
    peer->output_end += load.frame.byte_count;
    run.in_flight++;
}

static void watch(int epoll, struct connection *peer, int operation, int sending)
{
    struct epoll_event event = {.events = EPOLLIN | (sending ? EPOLLOUT : 0), .data.ptr = peer};
    if (epoll_ctl(epoll, operation, peer->fd, &event) != 0)
        fail("epoll_ctl");
    peer->waits_to_send = sending;
}

static void flush(int epoll, struct connection *peer)
{
    while (peer->output_start < peer->output_end) {
        size_t left = peer->output_end - peer->output_start;
        ssize_t sent = send(peer->fd, peer->output + peer->output_start, left, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0)
            fail("send");
        peer->output_start += (size_t)sent;
    }
    size_t left = peer->output_end - peer->output_start;
    memmove(peer->output, peer->output + peer->output_start, left);
    peer->output_start = 0;
    peer->output_end = left;
    if (peer->waits_to_send != (left > 0))
        watch(epoll, peer, EPOLL_CTL_MOD, left > 0);
}

/* ---- answers: each length function returns 0 while the answer is not whole ---- */

static size_t remoting_length(const char *data, size_t available)
{
    uint32_t length;
    if (available < 8)
        return 0;
    memcpy(&length, data, sizeof length);
    size_t whole = (size_t)ntohl(length) + 4;
    return available < whole ? 0 : whole;
}

static size_t resp_length(const char *data, size_t available)
{
    size_t position = 0;
    for (long left = 1; left > 0; left--) {
        const char *end = memmem(data + position, available - position, "\r\n", 2);
        if (end == NULL)
            return 0;
        char kind = data[position];
        long value = strtol(data + position + 1, NULL, 10);
        position = (size_t)(end - data) + 2;
        if (kind == '$' && value >= 0)
            position += (size_t)value + 2;
        else if (kind == '*' && value > 0)
            left += value;
        if (position > available)
            return 0;
    }
    return position;
}

/* A line, or a message: the length of its payload ends its line. */
static size_t nats_length(const char *data, size_t available)
{
    const char *end = memmem(data, available, "\r\n", 2);
    if (end == NULL)
        return 0;
    size_t whole = (size_t)(end - data) + 2;
    if (memcmp(data, "MSG ", 4) == 0) {
        const char *space = memrchr(data, ' ', (size_t)(end - data));
        whole += strtoul(space + 1, NULL, 10) + 2;
    }
    return available < whole ? 0 : whole;
}

static size_t answer_length(const char *data, size_t available)
{
    switch (load.protocol) {
    case RESP:
        return resp_length(data, available);
    case NATS:
        return nats_length(data, available);
    default:
        return remoting_length(data, available);
    }
}

static long header_number(const char *header, size_t byte_count, const char *key)
{
    const char *found = memmem(header, byte_count, key, strlen(key));
    return found == NULL ? -1 : strtol(found + strlen(key), NULL, 10);
}

static void count_error(const char *data, size_t byte_count)
{
    if (run.errors++ == 0)
        fprintf(stderr, "load: the first error: %.*s\n",
                (int)(byte_count < 600 ? byte_count : 600), data);
}

static uint32_t numbered_slot(struct connection *peer, long number, const char *data, size_t size)
{
    uint32_t index = (uint32_t)((number - (long)NUMBER_FIRST) % (long)load.depth);
    if (number < (long)NUMBER_FIRST || peer->slots[index].number != (uint32_t)number) {
        count_error(data, size);
        fail("an answer to no request in flight");
    }
    return index;
}

/* Where a half message lies: its queue offset, and the end of its id in hexadecimal digits. */
static void note_half(struct slot *slot, const char *header, size_t byte_count)
{
    static const char key[] = "\"msgId\":\"";
    const char *id = memmem(header, byte_count, key, sizeof key - 1);
    long queue_offset = header_number(header, byte_count, "\"queueOffset\":\"");
    if (slot->refused)
        return;
    if (id == NULL || queue_offset < 0)
        fail("the answer to a half message without its place");
    id += sizeof key - 1;
    const char *end = memchr(id, '"', byte_count - (size_t)(id - header));
    char digits[17] = {0};
    if (end == NULL || end - id < 32)
        fail("the id of a half message");
    memcpy(digits, end - 16, 16);
    slot->queue_offset = (uint64_t)queue_offset;
    slot->log_offset = strtoull(digits, NULL, 16);
}

static uint32_t remoting_slot(struct connection *peer, const char *data, size_t byte_count)
{
    size_t header_bytes = (size_t)(unsigned char)data[5] << 16 |
                          (size_t)(unsigned char)data[6] << 8 | (size_t)(unsigned char)data[7];
    if (data[4] != 0 || header_bytes + 8 > byte_count)
        fail("an answer without a JSON header");
    const char *header = data + 8;
    long code = header_number(header, header_bytes, "\"code\":");
    long number = header_number(header, header_bytes, "\"opaque\":");
    uint32_t index = numbered_slot(peer, number, header, header_bytes);
    /* The first pull of a wake asks far behind the end, to be told where that is. */
    int is_told = load.protocol == WAKE && code == PULL_OFFSET_MOVED && peer->slots[index].turn == 1;
    /* A pull whose send was refused as busy is held in vain, until its time is over. */
    int is_in_vain = load.protocol == WAKE && code == PULL_NOT_FOUND;
    if (code != load.answer_code && code != SYSTEM_BUSY && !is_told && !is_in_vain)
        count_error(header, header_bytes);
    peer->slots[index].refused = code == SYSTEM_BUSY || is_in_vain;
    if (load.protocol == TRANSACTION && !peer->slots[index].is_second)
        note_half(&peer->slots[index], header, header_bytes);
    if (load.protocol == WAKE && peer->slots[index].is_second == 0)
        peer->slots[index].queue_offset =
            (uint64_t)header_number(header, header_bytes, "\"nextBeginOffset\":\"");
    return index;
}

static uint32_t resp_slot(struct connection *peer, const char *data, size_t byte_count)
{
    if (data[0] == '-')
        count_error(data, byte_count);
    uint32_t index = peer->oldest;
    peer->oldest = (index + 1) % load.depth;
    return index;
}

static uint32_t nats_slot(struct connection *peer, const char *data, size_t byte_count)
{
    if (memmem(data, byte_count, "\"seq\":", 6) == NULL)
        count_error(data, byte_count);
    const char *subject_end = memchr(data + 4, ' ', byte_count - 4);
    const char *dot = memrchr(data, '.', (size_t)(subject_end - data));
    return numbered_slot(peer, dot == NULL ? -1 : strtol(dot + 1, NULL, 10), data, byte_count);
}

/* Lines of the server's own: who it is, and pings, of which it lets two go unanswered. */
static int is_chatter(const char *data, size_t byte_count)
{
    if (load.protocol != NATS || memcmp(data, "MSG ", 4) == 0)
        return 0;
    if (data[0] == '-') {
        count_error(data, byte_count);
        fail("the server refused a connection");
    }
    return 1;
}

/* Whether the answer was the one of two that does not count; the other frame is queued then. */
static int was_first_of_two(struct connection *peer, uint32_t index)
{
    struct slot *slot = &peer->slots[index];
    if (load.protocol != TRANSACTION || slot->is_second || slot->refused)
        return 0;
    queue_second(peer, index, slot);
    return 1;
}

/* Both the pull and the send of a slot were answered: on with the next. The pull leaves first. */
static void wake_again(int epoll, struct connection *peer, uint32_t index, double now)
{
    struct connection *puller = peer->slots[index].is_second ? peer->partner : peer;
    struct connection *sender = puller->partner;
    if (run.closed || puller->slots[index].in_flight || sender->slots[index].in_flight)
        return;
    queue_request(puller, index, now);
    flush(epoll, puller);
    queue_second(sender, index, &puller->slots[index]);
    flush(epoll, sender);
}

static void take_answer(int epoll, struct connection *peer, const char *data, size_t byte_count,
                        double now)
{
    if (is_chatter(data, byte_count))
        return;
    uint32_t index = load.protocol == RESP   ? resp_slot(peer, data, byte_count)
                     : load.protocol == NATS ? nats_slot(peer, data, byte_count)
                                             : remoting_slot(peer, data, byte_count);
    struct slot *slot = &peer->slots[index];
    if (!slot->in_flight)
        fail("a second answer to one request");
    slot->in_flight = 0;
    run.in_flight--;
    run.answer_bytes += byte_count;
    run.busy += (uint64_t)slot->refused;
    if (was_first_of_two(peer, index))
        return;
    if (load.protocol == WAKE && slot->is_second) {
        wake_again(epoll, peer, index, now);
        return;
    }
    if (run.opened && !run.closed && !slot->refused)
        count_latency(now - slot->sent_at);
    run.answered++;
    if (!run.opened && run.answered == load.warm)
        open_window();
    else if (!run.closed && run.answered == load.warm + load.count)
        close_window();
    if (load.protocol == WAKE)
        wake_again(epoll, peer, index, now);
    else if (!run.closed)
        queue_request(peer, index, now);
}

static void grow_input(struct connection *peer)
{
    peer->input_size *= 2;
    peer->input = realloc(peer->input, peer->input_size);
    if (peer->input == NULL)
        fail("realloc");
}

static void receive(int epoll, struct connection *peer)
{
    size_t room = peer->input_size - peer->input_used;
    ssize_t got = recv(peer->fd, peer->input + peer->input_used, room, 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0)
        fail(got == 0 ? "the server closed a connection" : "recv");
    peer->input_used += (size_t)got;
    run.reads++;
    size_t start = 0, byte_count;
    double now = seconds(CLOCK_MONOTONIC);
    for (;;) {
        size_t left = peer->input_used - start;
        const char *data = peer->input + start;
        byte_count = answer_length(data, left);
        if (byte_count == 0)
            break;
        take_answer(epoll, peer, data, byte_count, now);
        start += byte_count;
    }
    memmove(peer->input, peer->input + start, peer->input_used - start);
    peer->input_used -= start;
    if (peer->input_used == peer->input_size)
        grow_input(peer);
    flush(epoll, peer);
}

/* ---- the run ---- */

static void replace_all(char *data, size_t byte_count, const char *found, uint32_t number)
{
    struct text text = {.data = data, .byte_count = byte_count};
    find_places(&text, found);
    put_number(data, &text, number);
}

static void greet(struct connection *peer, uint32_t own_number)
{
    char *greeting = allocated(load.greeting.byte_count + 1);
    memcpy(greeting, load.greeting.data, load.greeting.byte_count);
    replace_all(greeting, load.greeting.byte_count, CONNECTION_NUMBER, own_number);
    if (send(peer->fd, greeting, load.greeting.byte_count, MSG_NOSIGNAL) !=
        (ssize_t)load.greeting.byte_count)
        fail("send");
    free(greeting);
}

static size_t longest_frame(void)
{
    size_t second = load.second.byte_count;
    return second > load.frame.byte_count ? second : load.frame.byte_count;
}

static void connect_peer(struct connection *peer, uint32_t index, const struct sockaddr_in *address)
{
    int yes = 1;
    peer->index = index;
    uint32_t own_number = CONNECTION_FIRST + index;
    peer->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (peer->fd < 0 || connect(peer->fd, (const struct sockaddr *)address, sizeof *address) != 0)
        fail("connect");
    if (load.greeting.byte_count > 0)
        greet(peer, own_number);
    if (setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0 ||
        fcntl(peer->fd, F_SETFL, O_NONBLOCK) != 0)
        fail("the options of a socket");
    peer->input_size = INPUT_BYTES;
    peer->input = allocated(peer->input_size);
    peer->output = allocated(longest_frame() * load.depth);
    peer->frame = allocated(load.frame.byte_count);
    memcpy(peer->frame, load.frame.data, load.frame.byte_count);
    if (load.protocol == NATS)
        replace_all(peer->frame, load.frame.byte_count, CONNECTION_NUMBER, own_number);
    peer->slots = allocated(sizeof(struct slot) * load.depth);
}

static void start(int epoll, struct connection *peers)
{
    if (load.warm == 0)
        open_window();
    for (uint32_t i = 0; i < load.connections; i++) {
        watch(epoll, &peers[i], EPOLL_CTL_ADD, 0);
        double now = seconds(CLOCK_MONOTONIC);
        if (load.protocol == WAKE && i % 2 == 1)
            continue;
        for (uint32_t index = 0; index < load.depth; index++)
            queue_request(&peers[i], index, now);
        flush(epoll, &peers[i]);
    }
}

static int run_out(double deadline)
{
    int timed_out = 0;
    if (seconds(CLOCK_MONOTONIC) < deadline)
        return 0;
    if (!run.opened)
        fail("still warming up when the time was over");
    if (!run.closed) {
        close_window();
        timed_out = 1;
    }
    return timed_out;
}

static int drive(struct connection *peers)
{
    struct epoll_event events[EVENTS_MAX];
    int epoll = epoll_create1(EPOLL_CLOEXEC), timed_out = 0;
    if (epoll < 0)
        fail("epoll_create1");
    double deadline = seconds(CLOCK_MONOTONIC) + load.seconds;
    start(epoll, peers);
    while (run.in_flight > 0) {
        int ready = epoll_wait(epoll, events, EVENTS_MAX, 100);
        if (ready < 0 && errno != EINTR)
            fail("epoll_wait");
        for (int i = 0; i < ready; i++) {
            struct connection *peer = events[i].data.ptr;
            if (events[i].events & EPOLLOUT)
                flush(epoll, peer);
            if (events[i].events & ~(uint32_t)EPOLLOUT)
                receive(epoll, peer);
        }
        timed_out |= run_out(deadline);
        if (run.closed && seconds(CLOCK_MONOTONIC) > deadline + DRAIN_SECONDS)
            fail("requests were left without an answer");
    }
    close(epoll);
    return timed_out;
}

static void report(int timed_out)
{
    uint64_t counted = 0;
    for (int bucket = 0; bucket < BUCKET_COUNT; bucket++)
        counted += run.histogram[bucket];
    printf("{\"record_count\": %lu, \"wall_s\": %.9f, \"cpu_s\": %.9f, \"load_cpu_s\": %.9f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"answered\": %lu, "
           "\"answers_per_read\": %.2f, \"answer_bytes\": %lu, \"busy_count\": %lu, "
           "\"error_count\": %lu, \"timed_out\": %s}\n",
           counted, run.wall_end - run.wall_start, run.server_end - run.server_start,
           run.own_end - run.own_start, latency_us(0.5), latency_us(0.99), latency_us(0.999),
           run.answered, (double)counted / (double)(run.reads_counted ? run.reads_counted : 1),
           run.bytes_counted, run.busy, run.errors, timed_out ? "true" : "false");
}

static long number(const char *text, const char *name, long least)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*end != '\0' || value < least) {
        fprintf(stderr, "load: %s must be a number from %ld on, not '%s'\n", name, least, text);
        exit(2);
    }
    return value;
}

static enum protocol protocol_named(const char *name)
{
    for (int protocol = REMOTING; protocol <= WAKE; protocol++)
        if (strcmp(name, PROTOCOLS[protocol]) == 0)
            return (enum protocol)protocol;
    fprintf(stderr, "load: no such protocol: '%s'\n", name);
    exit(2);
}

static void find_walk(const char *step, const char *span)
{
    load.step = (uint32_t)number(step, "STEP", 1);
    load.span = (uint32_t)number(span, "SPAN", load.step);
    load.offset = load.queue = load.frame;
    load.offset.place_count = load.queue.place_count = 0;
    find_places(&load.offset, OFFSET_NUMBER);
    find_places(&load.queue, QUEUE_NUMBER);
    if (load.offset.place_count == 0 || load.queue.place_count == 0)
        fail("a pull without the numbers " OFFSET_NUMBER " and " QUEUE_NUMBER);
}

static struct text found_in(const struct text *text, const char *digits, size_t digit_count)
{
    struct text found = *text;
    found.place_count = 0;
    if (digit_count == NUMBER_DIGITS) {
        find_places(&found, digits);
        return found;
    }
    const char *place = memmem(text->data, text->byte_count, digits, digit_count);
    if (place != NULL)
        found.places[found.place_count++] = (size_t)(place - text->data);
    return found;
}

static void read_second(const char *path)
{
    read_text(&load.second, path);
    find_places(&load.second, NUMBER);
    load.second_log = found_in(&load.second, LOG_NUMBER, LOG_DIGITS);
    load.second_offset = found_in(&load.second, OFFSET_NUMBER, NUMBER_DIGITS);
    load.second_queue = found_in(&load.second, QUEUE_NUMBER, NUMBER_DIGITS);
    load.offset = found_in(&load.frame, OFFSET_NUMBER, NUMBER_DIGITS);
    load.queue = found_in(&load.frame, QUEUE_NUMBER, NUMBER_DIGITS);
    int is_whole = load.protocol == WAKE
                       ? load.offset.place_count && load.queue.place_count &&
                             load.second_queue.place_count
                       : load.second_offset.place_count && load.second_log.place_count;
    if (load.second.place_count == 0 || !is_whole)
        fail("a second frame, or a first, without its numbers");
}

/* Connections of a wake come in pairs: one pulls, the next one sends for it. */
static void pair_up(struct connection *peers)
{
    for (uint32_t i = 0; i < load.connections; i++) {
        peers[i].partner = &peers[i ^ 1];
        peers[i].index = i / 2;
        for (uint32_t index = 0; index < load.depth; index++) {
            peers[i].slots[index].is_second = i % 2;
            peers[i].slots[index].queue_offset = NUMBER_COUNT;
        }
    }
}

static void read_texts(const char *frame, const char *greeting)
{
    read_text(&load.frame, frame);
    if (load.protocol != RESP) {
        find_places(&load.frame, NUMBER);
        if (load.frame.place_count == 0)
            fail("a request without the number " NUMBER);
    }
    if (greeting != NULL)
        read_text(&load.greeting, greeting);
}

static void disconnect_peer(struct connection *peer)
{
    close(peer->fd);
    free(peer->input);
    free(peer->output);
    free(peer->frame);
    free(peer->slots);
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int is_walk = argc > 1 && strcmp(argv[1], PROTOCOLS[WALK]) == 0;
    int has_second = argc == 12 && (strcmp(argv[1], PROTOCOLS[TRANSACTION]) == 0 ||
                                    strcmp(argv[1], PROTOCOLS[WAKE]) == 0);
    if (argc < (is_walk ? 13 : 11) || argc > (is_walk ? 13 : 12) ||
        inet_pton(AF_INET, argv[2], &address.sin_addr) != 1) {
        fprintf(stderr, "usage: load remoting|resp|nats ADDRESS PORT PID CONNECTIONS DEPTH WARM "
                        "COUNT SECONDS FILE [GREETING]\n"
                        "       load walk ADDRESS PORT PID CONNECTIONS DEPTH WARM "
                        "COUNT SECONDS FILE STEP SPAN\n"
                        "       load transaction|wake ADDRESS PORT PID CONNECTIONS DEPTH WARM "
                        "COUNT SECONDS FILE SECOND\n");
        return 2;
    }
    load.protocol = protocol_named(argv[1]);
    address.sin_port = htons((uint16_t)number(argv[3], "PORT", 1));
    load.server = (pid_t)number(argv[4], "PID", 1);
    load.connections = (uint32_t)number(argv[5], "CONNECTIONS", 1);
    load.depth = (uint32_t)number(argv[6], "DEPTH", 1);
    load.warm = (uint64_t)number(argv[7], "WARM", 0);
    load.count = (uint64_t)number(argv[8], "COUNT", 1);
    load.seconds = (double)number(argv[9], "SECONDS", 1);
    const char *answer_code = getenv("LOAD_ANSWER_CODE");
    load.answer_code = answer_code ? number(answer_code, "LOAD_ANSWER_CODE", 0) : 0;
    read_texts(argv[10], argc == 12 && !has_second ? argv[11] : NULL);
    if (is_walk)
        find_walk(argv[11], argv[12]);
    if (has_second)
        read_second(argv[11]);
    if (load.protocol == WAKE)
        load.connections *= 2;

    struct connection *peers = allocated(sizeof(struct connection) * load.connections);
    for (uint32_t i = 0; i < load.connections; i++)
        connect_peer(&peers[i], i, &address);
    if (load.protocol == WAKE)
        pair_up(peers);
    report(drive(peers));
    for (uint32_t i = 0; i < load.connections; i++)
        disconnect_peer(&peers[i]);
    free(peers);
    free(load.frame.data);
    free(load.greeting.data);
    return run.errors > 0;
}
