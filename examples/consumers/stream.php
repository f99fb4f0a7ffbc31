<?php
// Takes jobs from an acknowledged stream. apt install php-cli php-redis
// REDIS_URL=… php stream.php orders closers me
[, $stream, $group, $me] = $argv;
$at = parse_url(getenv('REDIS_URL'));
$db = new Redis();
$db->connect($at['host'], $at['port'] ?? 6379);

function close_order(array $job): void
{
    echo 'done ', $job['key'], ' ', $job['payload'], "\n";
}

while (true) {
    $read = $db->xReadGroup($group, $me, [$stream => '>'], 10, 1000) ?: [];
    foreach ($read[$stream] ?? [] as $id => $job) {
        try {
            close_order($job);
        } catch (Throwable $error) {
            // Not acknowledged, it comes again as the policy of its route says.
            fwrite(STDERR, $job['key'] . ': ' . $error->getMessage() . "\n");
            continue;
        }
        $db->xAck($stream, $group, [$id]);
    }
}
