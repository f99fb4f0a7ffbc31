<?php
// Takes jobs from an acknowledged list. apt install php-cli php-redis; REDIS_URL=… php list.php orders
[, $list] = $argv;
$at = parse_url(getenv('REDIS_URL'));
$db = new Redis();
$db->connect($at['host'], $at['port'] ?? 6379);

function close_order(array $job): void
{
    echo 'done ', $job['key'], ' ', json_encode($job['payload']), "\n";
}

while (true) {
    $taken = $db->blPop([$list], 1);
    if (!$taken) {
        continue;
    }
    $job = json_decode($taken[1], true);
    try {
        close_order($job);
    } catch (Throwable $error) {
        // Not acknowledged, it comes again when its lease is over.
        fwrite(STDERR, $job['key'] . ': ' . $error->getMessage() . "\n");
        continue;
    }
    $db->rPush("$list:done", $job['lease']);
}
