<?php
// Keys as Laravel Sanctum 4 makes them: what its table stores, and what the client gets.
$letters = array_merge(range('a', 'z'), range('A', 'Z'), range(0, 9));
$keys = [];
for ($id = 1; $id <= (int) getenv('NUMBER'); $id++) {
    $entropy = '';
    while (strlen($entropy) < 40) {
        $entropy .= $letters[random_int(0, 61)];
    }
    $plain = sprintf('%s%s%s', getenv('PREFIX') ?: '', $entropy, hash('crc32b', $entropy));
    $keys[] = ['id' => $id, 'token' => hash('sha256', $plain), 'plainTextToken' => $id . '|' . $plain];
}
echo json_encode($keys);
