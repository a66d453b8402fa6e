-- A data directory as the program wrote it with schema 7. @PROJECT@ and @DATA@ stand for its folders.
PRAGMA user_version = 7;
PRAGMA application_id = 1397772871;
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO meta VALUES('clock','1794918811523 00000000-0000-0000-0000-000000000000');
INSERT INTO meta VALUES('token_key','4b5c89e38632ec0619a97f8a056ad8df75ad60181b18f4419089f144945d7b78');
CREATE TABLE plans (
    hash INTEGER PRIMARY KEY,
    body TEXT NOT NULL
);
INSERT INTO plans VALUES(-8490244793947246375,'{"name":"breaks","steps":[{"id":"fine","needs":[],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"run\":{\"command\":\"true\",\"shell\":[\"sh\",\"-e\",\"-c\"]}}}","work":"execution","condition":"none"},{"id":"breaks","needs":[0],"policy":{"attempts":2,"backoff":{"growth":"fixed","delay_ms":10,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"run\":{\"command\":\"test -e mended\",\"shell\":[\"sh\",\"-e\",\"-c\"]}}}","work":"execution","condition":"none"},{"id":"after","needs":[1],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"run\":{\"command\":\"echo after\",\"shell\":[\"sh\",\"-e\",\"-c\"]}}}","work":"execution","condition":"none"}]}');
INSERT INTO plans VALUES(-8105788913312178451,'{"name":"tree","steps":[{"id":"work","needs":[],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"run\":{\"command\":\"echo work > made.txt; git add made.txt; git commit -qm made\",\"shell\":[\"sh\",\"-e\",\"-c\"]}}}","work":"execution","condition":"none"},{"id":"land","needs":[0],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"land\":{\"into\":\"main\",\"strategy\":\"rebase\"}}}","work":"execution","condition":"none"}],"environment":{"spec":"{\"worktree\":{\"base\":\"HEAD\",\"branch\":\"sprag/name\",\"keep\":\"never\",\"submodules\":false,\"sparse\":[]}}"}}');
INSERT INTO plans VALUES(-5880508502730684135,'{"name":"chain","steps":[{"id":"one","needs":[],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"run\":{\"command\":\"echo {{ inputs.word }}; echo \\\"{\\\\\\\"n\\\\\\\": 3}\\\" > n.json\",\"shell\":[\"sh\",\"-e\",\"-c\"]}},\"outputs\":{\"n\":{\"file\":{\"path\":\"n.json\",\"format\":null}}}}","work":"execution","condition":"none"},{"id":"two","needs":[0],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"run\":{\"command\":\"echo two\",\"shell\":[\"sh\",\"-e\",\"-c\"]}}}","work":"execution","condition":"none"},{"id":"three","needs":[1],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"run\":{\"command\":\"exit 0\",\"shell\":[\"sh\",\"-e\",\"-c\"]}}}","work":"execution","condition":"none"}]}');
INSERT INTO plans VALUES(-4751231990183248204,'{"name":"asks","steps":[{"id":"before","needs":[],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"run\":{\"command\":\"echo before\",\"shell\":[\"sh\",\"-e\",\"-c\"]}}}","work":"execution","condition":"none"},{"id":"ask","needs":[0],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"gate\":{\"ask\":\"Go on?\",\"choices\":[\"yes\",\"no\"]}}}","work":"gate","condition":"none"},{"id":"after","needs":[1],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"run\":{\"command\":\"echo after\",\"shell\":[\"sh\",\"-e\",\"-c\"]}}}","work":"execution","condition":"none"}]}');
INSERT INTO plans VALUES(1622933505199297886,'{"name":"waits","steps":[{"id":"go","needs":[],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"wait\":{\"signal\":{\"name\":\"go\"}}}}","work":"wait","condition":"none"},{"id":"after","needs":[0],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"run\":{\"command\":\"echo after\",\"shell\":[\"sh\",\"-e\",\"-c\"]}}}","work":"execution","condition":"none"}]}');
INSERT INTO plans VALUES(2473524021696992296,'{"name":"sprint","steps":[{"id":"task","needs":[],"policy":{"attempts":1,"backoff":{"growth":"exponential","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"board/sprint/0ajemp87c2v1","priority":0,"spec":"{\"kind\":{\"task\":{\"prompt\":\"{{ item.text }}\",\"with\":null}},\"fan_out\":{\"over\":{\"each\":[]},\"fail_fast\":false}}","work":"task","condition":"none","spread":{"max_parallel":null,"fail_fast":false,"open":true}}]}');
INSERT INTO plans VALUES(7852850531358376966,'{"name":"fans","steps":[{"id":"each","needs":[],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"run\":{\"command\":\"echo {{ item }}\",\"shell\":[\"sh\",\"-e\",\"-c\"]}},\"fan_out\":{\"over\":{\"each\":[\"a\",\"b\",\"c\"]},\"fail_fast\":false}}","work":"execution","condition":"none","spread":{"max_parallel":null,"fail_fast":false}},{"id":"last","needs":[0],"policy":{"attempts":1,"backoff":{"growth":"fixed","delay_ms":0,"max_delay_ms":0,"jitter_percent":0},"on_fail":"fail","always":false,"at_most_once":false,"losses":10,"retry_exit_codes":[]},"queue":"default","priority":0,"spec":"{\"kind\":{\"run\":{\"command\":\"echo last\",\"shell\":[\"sh\",\"-e\",\"-c\"]}}}","work":"execution","condition":"none"}]}');
CREATE TABLE runs (
    id              INTEGER PRIMARY KEY,
    status          TEXT    NOT NULL,
    version         INTEGER NOT NULL,
    epoch           INTEGER NOT NULL,
    open            INTEGER NOT NULL,
    unsettled       INTEGER NOT NULL,
    broken          INTEGER NOT NULL,
    reworking       INTEGER,
    plan            INTEGER NOT NULL REFERENCES plans (hash),
    pipeline        TEXT    NOT NULL,
    pin             INTEGER NOT NULL,
    priority        INTEGER NOT NULL,
    grp             TEXT,
    idempotency_key TEXT,
    inputs          TEXT    NOT NULL,
    context         TEXT    NOT NULL,
    reason          TEXT,
    first_seq       INTEGER NOT NULL,
    last_seq        INTEGER NOT NULL,
    created_ms      INTEGER NOT NULL,
    started_ms      INTEGER,
    ended_ms        INTEGER
, parent_run INTEGER, parent_step INTEGER, root INTEGER NOT NULL DEFAULT 0, steps INTEGER NOT NULL DEFAULT 0);
INSERT INTO runs VALUES(11908420763432593,'completed',4,1,0,0,0,NULL,-5880508502730684135,'chain',4592020391651853461,0,NULL,NULL,'{"word":"old"}','{"dir":"@PROJECT@"}',NULL,2,28,1794921240252,1794921240252,1794921240312,NULL,NULL,11908420763432593,3);
INSERT INTO runs VALUES(11908420776269454,'failed',3,1,0,0,2,NULL,-8490244793947246375,'breaks',3493486039205495885,0,NULL,NULL,'{}','{"dir":"@PROJECT@"}',NULL,32,59,1794921240360,1794921240360,1794921240426,NULL,NULL,11908420776269454,3);
INSERT INTO runs VALUES(11908420793053383,'running',3,1,0,2,0,NULL,-4751231990183248204,'asks',0,0,NULL,NULL,'{}','{"dir":"@PROJECT@"}',NULL,63,77,1794921240488,1794921240488,NULL,NULL,NULL,11908420793053383,3);
INSERT INTO runs VALUES(11908420802148465,'completed',3,1,0,0,0,NULL,7852850531358376966,'fans',165738532020321480,0,NULL,NULL,'{}','{"dir":"@PROJECT@"}',NULL,79,119,1794921240552,1794921240552,1794921240597,NULL,NULL,11908420802148465,5);
INSERT INTO runs VALUES(11908420815480414,'completed',6,1,0,0,0,NULL,-8105788913312178451,'tree',4436854024740394134,0,NULL,NULL,'{}','{"dir":"@PROJECT@"}',NULL,123,147,1794921240661,1794921240661,1794921240875,NULL,NULL,11908420815480414,2);
INSERT INTO runs VALUES(11908420860961327,'running',1,1,0,3,0,NULL,-5880508502730684135,'chain',0,0,NULL,NULL,'{"word":"hello"}','{"dir":"@PROJECT@"}',NULL,148,153,1794921240992,1794921240992,NULL,NULL,NULL,11908420860961327,3);
INSERT INTO runs VALUES(11908420865051549,'running',1,1,0,2,0,NULL,1622933505199297886,'waits',0,0,NULL,NULL,'{}','{"dir":"@PROJECT@"}',NULL,154,158,1794921241024,1794921241024,NULL,NULL,NULL,11908420865051549,2);
INSERT INTO runs VALUES(11908420869432594,'cancelled',2,1,0,0,3,NULL,-5880508502730684135,'chain',0,0,NULL,NULL,'{"word":"hello"}','{"dir":"@PROJECT@"}',NULL,159,171,1794921241057,1794921241057,1794921241363,NULL,NULL,11908420869432594,3);
INSERT INTO runs VALUES(11908422022073185,'running',4,1,1,1,0,NULL,2473524021696992296,'sprint',0,0,NULL,NULL,'{}','{}',NULL,172,190,1794921249851,1794921249851,NULL,NULL,NULL,11908422022073185,4);
CREATE TABLE steps (
    run             INTEGER NOT NULL,
    no              INTEGER NOT NULL,
    status          TEXT    NOT NULL,
    version         INTEGER NOT NULL,
    attempt         INTEGER NOT NULL,
    round           INTEGER NOT NULL,
    tries           INTEGER NOT NULL,
    losses          INTEGER NOT NULL,
    reworks         INTEGER NOT NULL,
    open_needs      INTEGER NOT NULL,
    broken_needs    INTEGER NOT NULL,
    skipped_by_when INTEGER NOT NULL,
    rework_pending  INTEGER NOT NULL,
    feedback        TEXT,
    started_ms      INTEGER,
    ended_ms        INTEGER, item_of INTEGER, item INTEGER, work INTEGER, items TEXT,
    PRIMARY KEY (run, no)
) WITHOUT ROWID;
INSERT INTO steps VALUES(11908420763432593,0,'done',3,1,0,0,0,0,0,0,0,0,NULL,1794921240257,1794921240285,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420763432593,1,'done',3,1,0,0,0,0,0,0,0,0,NULL,1794921240285,1794921240301,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420763432593,2,'done',3,1,0,0,0,0,0,0,0,0,NULL,1794921240301,1794921240312,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420776269454,0,'done',3,1,0,0,0,0,0,0,0,0,NULL,1794921240364,1794921240377,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420776269454,1,'failed',5,2,0,1,0,0,0,0,0,0,'step `breaks` failed: exit code 1',1794921240411,1794921240426,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420776269454,2,'cancelled',2,1,0,0,0,0,0,1,0,0,NULL,NULL,1794921240426,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420793053383,0,'done',3,1,0,0,0,0,0,0,0,0,NULL,1794921240496,1794921240508,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420793053383,1,'running',2,1,0,0,0,0,0,0,0,0,NULL,1794921240508,NULL,NULL,NULL,3479653378839178666,NULL);
INSERT INTO steps VALUES(11908420793053383,2,'waiting',1,1,0,0,0,0,1,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420802148465,0,'done',4,1,0,0,0,0,0,0,0,0,NULL,1794921240552,1794921240583,NULL,NULL,NULL,'1 2 3 3 3 0 0 0 0');
INSERT INTO steps VALUES(11908420802148465,1,'done',3,1,0,0,0,0,0,0,0,0,NULL,1794921240583,1794921240597,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420802148465,2,'done',3,1,0,0,0,0,0,0,0,0,NULL,1794921240557,1794921240583,0,0,NULL,NULL);
INSERT INTO steps VALUES(11908420802148465,3,'done',3,1,0,0,0,0,0,0,0,0,NULL,1794921240557,1794921240583,0,1,NULL,NULL);
INSERT INTO steps VALUES(11908420802148465,4,'done',3,1,0,0,0,0,0,0,0,0,NULL,1794921240557,1794921240577,0,2,NULL,NULL);
INSERT INTO steps VALUES(11908420815480414,0,'done',3,1,0,0,0,0,0,0,0,0,NULL,1794921240663,1794921240771,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420815480414,1,'done',3,1,0,0,0,0,0,0,0,0,NULL,1794921240771,1794921240875,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420860961327,0,'pending',1,1,0,0,0,0,0,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420860961327,1,'waiting',1,1,0,0,0,0,1,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420860961327,2,'waiting',1,1,0,0,0,0,1,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420865051549,0,'running',1,1,0,0,0,0,0,0,0,0,NULL,1794921241024,NULL,NULL,NULL,2841030708077389296,NULL);
INSERT INTO steps VALUES(11908420865051549,1,'waiting',1,1,0,0,0,0,1,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420869432594,0,'cancelled',2,1,0,0,0,0,0,0,0,0,NULL,NULL,1794921241363,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420869432594,1,'cancelled',2,1,0,0,0,0,0,1,0,0,NULL,NULL,1794921241363,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908420869432594,2,'cancelled',2,1,0,0,0,0,0,1,0,0,NULL,NULL,1794921241363,NULL,NULL,NULL,NULL);
INSERT INTO steps VALUES(11908422022073185,0,'running',5,1,0,0,0,0,0,0,0,0,NULL,1794921249851,NULL,NULL,NULL,NULL,'1 1 3 3 1 0 0 0 0');
INSERT INTO steps VALUES(11908422022073185,1,'done',3,1,0,0,0,0,0,0,0,0,NULL,1794921257907,1794921258169,0,0,NULL,NULL);
INSERT INTO steps VALUES(11908422022073185,2,'running',2,1,0,0,0,0,0,0,0,0,NULL,1794921258202,NULL,0,1,NULL,NULL);
INSERT INTO steps VALUES(11908422022073185,3,'pending',1,1,0,0,0,0,0,0,0,0,NULL,NULL,NULL,0,2,NULL,NULL);
CREATE TABLE executions (
    run              INTEGER NOT NULL,
    step             INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    status           TEXT    NOT NULL,
    version          INTEGER NOT NULL,
    fence            INTEGER NOT NULL,
    epoch            INTEGER NOT NULL,
    queue            TEXT    NOT NULL,
    pin              INTEGER NOT NULL,
    priority         INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL,
    not_before_ms    INTEGER NOT NULL,
    published_ms     INTEGER NOT NULL,
    owner            INTEGER,
    lease_until_ms   INTEGER NOT NULL,
    nonce            INTEGER NOT NULL,
    retriable        INTEGER NOT NULL,
    result           TEXT,
    created_ms       INTEGER NOT NULL,
    started_ms       INTEGER,
    ended_ms         INTEGER,
    PRIMARY KEY (run, step, attempt)
) WITHOUT ROWID;
INSERT INTO executions VALUES(11908420763432593,0,1,'completed',3,2,1,'default',4592020391651853461,0,0,0,1794921240252,4592020391651853461,1794921270257,5730313007023721884,1,'{"exit_code":0,"leftovers":0,"log_dropped_bytes":0,"log_error":null,"outputs":{"n":"@DATA@/runs/0ajemn2q1dmh/files/one.1/n/n.json"},"reason":"exited","signal":null,"usage":{"max_rss_kb":3164,"sys_ms":0,"user_ms":1,"wall_ms":1}}',1794921240252,1794921240257,1794921240285);
INSERT INTO executions VALUES(11908420763432593,1,1,'completed',2,2,1,'default',4592020391651853461,0,0,0,1794921240285,4592020391651853461,1794921270285,7261530868720719793,1,'{"exit_code":0,"leftovers":0,"log_dropped_bytes":0,"log_error":null,"reason":"exited","signal":null,"usage":{"max_rss_kb":3276,"sys_ms":0,"user_ms":0,"wall_ms":1}}',1794921240285,1794921240285,1794921240301);
INSERT INTO executions VALUES(11908420763432593,2,1,'completed',2,2,1,'default',4592020391651853461,0,0,0,1794921240301,4592020391651853461,1794921270301,1605821385123142461,1,'{"exit_code":0,"leftovers":0,"log_dropped_bytes":0,"log_error":null,"reason":"exited","signal":null,"usage":{"max_rss_kb":3204,"sys_ms":0,"user_ms":0,"wall_ms":1}}',1794921240301,1794921240301,1794921240312);
INSERT INTO executions VALUES(11908420776269454,0,1,'completed',3,2,1,'default',3493486039205495885,0,0,0,1794921240360,3493486039205495885,1794921270364,6618337831392790203,1,'{"exit_code":0,"leftovers":0,"log_dropped_bytes":0,"log_error":null,"reason":"exited","signal":null,"usage":{"max_rss_kb":3112,"sys_ms":0,"user_ms":1,"wall_ms":1}}',1794921240360,1794921240364,1794921240377);
INSERT INTO executions VALUES(11908420776269454,1,1,'failed',2,2,1,'default',3493486039205495885,0,0,0,1794921240377,3493486039205495885,1794921270377,7326350265403668647,1,'{"exit_code":1,"leftovers":0,"log_dropped_bytes":0,"log_error":null,"reason":"exited","signal":null,"tail":"","usage":{"max_rss_kb":3000,"sys_ms":0,"user_ms":1,"wall_ms":0}}',1794921240377,1794921240377,1794921240393);
INSERT INTO executions VALUES(11908420776269454,1,2,'failed',4,2,1,'default',3493486039205495885,0,0,1794921240402,1794921240407,3493486039205495885,1794921270411,6807987045016406414,1,'{"exit_code":1,"leftovers":0,"log_dropped_bytes":0,"log_error":null,"reason":"exited","signal":null,"tail":"","usage":{"max_rss_kb":3276,"sys_ms":0,"user_ms":1,"wall_ms":3}}',1794921240393,1794921240411,1794921240426);
INSERT INTO executions VALUES(11908420793053383,0,1,'completed',3,2,1,'default',2842575491120643413,0,0,0,1794921240488,2842575491120643413,1794921270496,6287958972445277974,1,'{"exit_code":0,"leftovers":0,"log_dropped_bytes":0,"log_error":null,"reason":"exited","signal":null,"usage":{"max_rss_kb":3016,"sys_ms":0,"user_ms":1,"wall_ms":3}}',1794921240488,1794921240496,1794921240508);
INSERT INTO executions VALUES(11908420802148465,1,1,'completed',2,2,1,'default',165738532020321480,0,0,0,1794921240583,165738532020321480,1794921270583,8120535207818490784,1,'{"exit_code":0,"leftovers":0,"log_dropped_bytes":0,"log_error":null,"reason":"exited","signal":null,"usage":{"max_rss_kb":3060,"sys_ms":0,"user_ms":1,"wall_ms":1}}',1794921240583,1794921240583,1794921240597);
INSERT INTO executions VALUES(11908420802148465,2,1,'completed',3,2,1,'default',165738532020321480,0,0,0,1794921240552,165738532020321480,1794921270557,459189178467587737,1,'{"exit_code":0,"leftovers":0,"log_dropped_bytes":0,"log_error":null,"reason":"exited","signal":null,"usage":{"max_rss_kb":3088,"sys_ms":0,"user_ms":1,"wall_ms":1}}',1794921240552,1794921240557,1794921240583);
INSERT INTO executions VALUES(11908420802148465,3,1,'completed',3,2,1,'default',165738532020321480,0,0,0,1794921240552,165738532020321480,1794921270557,459189178467587737,1,'{"exit_code":0,"leftovers":0,"log_dropped_bytes":0,"log_error":null,"reason":"exited","signal":null,"usage":{"max_rss_kb":3156,"sys_ms":0,"user_ms":1,"wall_ms":0}}',1794921240552,1794921240557,1794921240583);
INSERT INTO executions VALUES(11908420802148465,4,1,'completed',3,2,1,'default',165738532020321480,0,0,0,1794921240552,165738532020321480,1794921270557,459189178467587737,1,'{"exit_code":0,"leftovers":0,"log_dropped_bytes":0,"log_error":null,"reason":"exited","signal":null,"usage":{"max_rss_kb":3188,"sys_ms":0,"user_ms":1,"wall_ms":0}}',1794921240552,1794921240557,1794921240577);
INSERT INTO executions VALUES(11908420815480414,0,1,'completed',3,2,1,'default',4436854024740394134,0,0,0,1794921240661,4436854024740394134,1794921270663,2762152805465530196,1,'{"exit_code":0,"leftovers":0,"log_dropped_bytes":0,"log_error":null,"reason":"exited","signal":null,"usage":{"max_rss_kb":4816,"sys_ms":0,"user_ms":7,"wall_ms":21}}',1794921240661,1794921240663,1794921240771);
INSERT INTO executions VALUES(11908420815480414,1,1,'completed',2,2,1,'default',4436854024740394134,0,0,0,1794921240771,4436854024740394134,1794921270771,1363106608582298902,1,'{"outputs":{"before":"4e2022a5c4d833c1fd4dd5a5ab74cb189d64d1e8","checkouts_left":[],"commit":"ac2750fe3aec8e1d169db06253dff46c3cebc2f1","moved":true,"push_error":null,"pushed":false},"warnings":[]}',1794921240771,1794921240771,1794921240875);
INSERT INTO executions VALUES(11908420860961327,0,1,'scheduled',1,1,1,'default',0,0,0,0,1794921240992,NULL,1794921240992,0,1,NULL,1794921240992,NULL,NULL);
INSERT INTO executions VALUES(11908420869432594,0,1,'cancelled',2,2,1,'default',0,0,0,0,1794921241057,NULL,0,0,1,NULL,1794921241057,NULL,1794921241363);
INSERT INTO executions VALUES(11908422022073185,1,1,'completed',3,2,1,'board/sprint/0ajemp87c2v1',0,0,0,0,1794921257797,2679348442768665304,1794923057907,0,1,'{"outputs":{"ok":1}}',1794921257798,1794921257907,1794921258169);
INSERT INTO executions VALUES(11908422022073185,2,1,'running',2,2,1,'board/sprint/0ajemp87c2v1',0,0,0,0,1794921257835,2679348442768665304,1794923058202,0,1,NULL,1794921257835,1794921258202,NULL);
INSERT INTO executions VALUES(11908422022073185,3,1,'scheduled',1,1,1,'board/sprint/0ajemp87c2v1',0,0,0,0,1794921257874,NULL,9223372036854775807,0,1,NULL,1794921257874,NULL,NULL);
CREATE TABLE environments (
    id                INTEGER PRIMARY KEY,
    status            TEXT    NOT NULL,
    version           INTEGER NOT NULL,
    run               INTEGER,
    host              TEXT    NOT NULL,
    path              TEXT    NOT NULL,
    managed           INTEGER NOT NULL,
    cleanup_requested INTEGER NOT NULL,
    provision_attempt INTEGER NOT NULL,
    destroy_attempt   INTEGER NOT NULL,
    owner             INTEGER,
    reason            TEXT
, scope INTEGER, details TEXT NOT NULL DEFAULT '{}', created_ms INTEGER NOT NULL DEFAULT 0);
INSERT INTO environments VALUES(3189273773592662721,'destroyed',5,11908420815480414,'old#00000000','@DATA@/worktrees/0ajemn48nsjy',1,0,1,1,4436854024740394134,NULL,NULL,'{"base":"HEAD","base_commit":"4e2022a5c4d833c1fd4dd5a5ab74cb189d64d1e8","branch":"sprag/tree-0ajemn48nsjy","caches":[],"keep":"never","lost_host":null,"remote":null,"repository":"@PROJECT@/.git"}',1794921240671);
CREATE TABLE threads (
    id             INTEGER PRIMARY KEY,
    status         TEXT    NOT NULL,
    version        INTEGER NOT NULL,
    environment    INTEGER,
    stop_requested INTEGER NOT NULL,
    archived       INTEGER NOT NULL,
    deleted        INTEGER NOT NULL,
    turn           INTEGER NOT NULL,
    turn_open      INTEGER NOT NULL,
    runtime        INTEGER NOT NULL
);
CREATE TABLE gates (
    id            INTEGER PRIMARY KEY,
    status        TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    run           INTEGER NOT NULL,
    step          INTEGER NOT NULL,
    question      TEXT    NOT NULL,
    answer        TEXT,
    timeout_at_ms INTEGER NOT NULL
, attempt INTEGER NOT NULL DEFAULT 1, kind TEXT NOT NULL DEFAULT 'question', until_ms INTEGER NOT NULL DEFAULT 0, opened_ms INTEGER NOT NULL DEFAULT 0);
INSERT INTO gates VALUES(2841030708077389296,'open',1,11908420865051549,0,'go',NULL,0,1,'signal',0,1794921241024);
INSERT INTO gates VALUES(3479653378839178666,'open',1,11908420793053383,1,'{"ask":"Go on?","choices":["yes","no"]}',NULL,0,1,'question',0,1794921240508);
CREATE TABLE workers (
    id                 INTEGER PRIMARY KEY,
    status             TEXT    NOT NULL,
    version            INTEGER NOT NULL,
    name               TEXT    NOT NULL,
    process            TEXT    NOT NULL,
    queues             TEXT    NOT NULL,
    slots              INTEGER NOT NULL,
    heartbeat_until_ms INTEGER NOT NULL,
    created_ms         INTEGER NOT NULL
, labels TEXT NOT NULL DEFAULT '');
INSERT INTO workers VALUES(165738532020321480,'offline',3,'run-0ajemn3vyy3h','old#00000000/26350/242901/00000000000000000000000000000000/4026531836','',8,1794921270543,1794921240544,'');
INSERT INTO workers VALUES(2679348442768665304,'online',1,'somebody','','board/sprint/0ajemp87c2v1',1,1794923057907,1794921257907,'');
INSERT INTO workers VALUES(2842575491120643413,'offline',3,'run-0ajemn3k9c67','old#00000000/26342/242893/00000000000000000000000000000000/4026531836','',8,1794921270475,1794921240475,'');
INSERT INTO workers VALUES(3493486039205495885,'offline',3,'run-0ajemn3395me','old#00000000/26323/242881/00000000000000000000000000000000/4026531836','',8,1794921270346,1794921240346,'');
INSERT INTO workers VALUES(4436854024740394134,'offline',3,'run-0ajemn48nsjy','old#00000000/26367/242910/00000000000000000000000000000000/4026531836','',8,1794921270646,1794921240646,'');
INSERT INTO workers VALUES(4592020391651853461,'offline',3,'run-0ajemn2q1dmh','old#00000000/26304/242863/00000000000000000000000000000000/4026531836','',8,1794921270248,1794921240248,'');
CREATE TABLE enforcements (
    id      INTEGER PRIMARY KEY,
    status  TEXT    NOT NULL,
    version INTEGER NOT NULL,
    rule    TEXT    NOT NULL,
    event   TEXT    NOT NULL,
    run     INTEGER,
    UNIQUE (rule, event)
);
CREATE TABLE sentences (
    id     INTEGER PRIMARY KEY,
    entity TEXT NOT NULL,
    event  TEXT NOT NULL,
    was    TEXT NOT NULL,
    became TEXT NOT NULL,
    actor  TEXT NOT NULL,
    UNIQUE (entity, event, was, became, actor)
);
INSERT INTO sentences VALUES(1,'worker','worker.registered','offline','online','worker');
INSERT INTO sentences VALUES(2,'run','run.created','','queued','person');
INSERT INTO sentences VALUES(3,'run','run.started','queued','running','executor');
INSERT INTO sentences VALUES(4,'step','step.ready','waiting','pending','advance');
INSERT INTO sentences VALUES(5,'execution','execution.requested','','requested','executor');
INSERT INTO sentences VALUES(6,'execution','scheduling.started','requested','scheduling','executor');
INSERT INTO sentences VALUES(7,'execution','handoff.published','scheduling','scheduled','executor');
INSERT INTO sentences VALUES(8,'execution','handoff.received','scheduled','running','worker');
INSERT INTO sentences VALUES(9,'step','step.started','pending','running','advance');
INSERT INTO sentences VALUES(10,'execution','execution.completed','running','completed','worker');
INSERT INTO sentences VALUES(11,'step','step.succeeded','running','done','advance');
INSERT INTO sentences VALUES(12,'run','run.succeeded','running','completed','advance');
INSERT INTO sentences VALUES(13,'worker','worker.drain_requested','online','draining','worker');
INSERT INTO sentences VALUES(14,'worker','worker.left','draining','offline','worker');
INSERT INTO sentences VALUES(15,'execution','execution.failed','running','failed','worker');
INSERT INTO sentences VALUES(16,'step','step.retried','running','pending','advance');
INSERT INTO sentences VALUES(17,'step','step.failed','running','failed','advance');
INSERT INTO sentences VALUES(18,'run','failure.observed','running','failing','advance');
INSERT INTO sentences VALUES(19,'step','step.cancelled','waiting','cancelled','advance');
INSERT INTO sentences VALUES(20,'run','failure.settled','failing','failed','advance');
INSERT INTO sentences VALUES(21,'gate','gate.opened','','open','advance');
INSERT INTO sentences VALUES(22,'step','step.added','','waiting','advance');
INSERT INTO sentences VALUES(23,'environment','environment.created','','provisioning','executor');
INSERT INTO sentences VALUES(24,'environment','provision.succeeded','provisioning','ready','worker');
INSERT INTO sentences VALUES(25,'environment','destroy.dispatched','ready','destroying','worker');
INSERT INTO sentences VALUES(26,'environment','destroy.succeeded','destroying','destroyed','worker');
INSERT INTO sentences VALUES(27,'run','cancel.requested','running','cancelling','person');
INSERT INTO sentences VALUES(28,'execution','handoff.revoked','scheduled','requested','executor');
INSERT INTO sentences VALUES(29,'execution','execution.cancelled','requested','cancelled','executor');
INSERT INTO sentences VALUES(30,'step','step.cancelled','pending','cancelled','advance');
INSERT INTO sentences VALUES(31,'run','cancel.settled','cancelling','cancelled','advance');
CREATE TABLE journal (
    seq      INTEGER PRIMARY KEY,
    at_ms    INTEGER NOT NULL,
    sentence INTEGER NOT NULL REFERENCES sentences (id),
    run      INTEGER,
    step     INTEGER,
    attempt  INTEGER,
    entity   INTEGER
);
INSERT INTO journal VALUES(1,1794921240248,1,NULL,NULL,NULL,4592020391651853461);
INSERT INTO journal VALUES(2,1794921240252,2,11908420763432593,NULL,NULL,NULL);
INSERT INTO journal VALUES(3,1794921240252,3,11908420763432593,NULL,NULL,NULL);
INSERT INTO journal VALUES(4,1794921240252,4,11908420763432593,0,1,NULL);
INSERT INTO journal VALUES(5,1794921240252,5,11908420763432593,0,1,NULL);
INSERT INTO journal VALUES(6,1794921240252,6,11908420763432593,0,1,NULL);
INSERT INTO journal VALUES(7,1794921240252,7,11908420763432593,0,1,NULL);
INSERT INTO journal VALUES(8,1794921240257,8,11908420763432593,0,1,NULL);
INSERT INTO journal VALUES(9,1794921240257,9,11908420763432593,0,1,NULL);
INSERT INTO journal VALUES(10,1794921240285,10,11908420763432593,0,1,NULL);
INSERT INTO journal VALUES(11,1794921240285,11,11908420763432593,0,1,NULL);
INSERT INTO journal VALUES(12,1794921240285,4,11908420763432593,1,1,NULL);
INSERT INTO journal VALUES(13,1794921240285,5,11908420763432593,1,1,NULL);
INSERT INTO journal VALUES(14,1794921240285,6,11908420763432593,1,1,NULL);
INSERT INTO journal VALUES(15,1794921240285,7,11908420763432593,1,1,NULL);
INSERT INTO journal VALUES(16,1794921240285,8,11908420763432593,1,1,NULL);
INSERT INTO journal VALUES(17,1794921240285,9,11908420763432593,1,1,NULL);
INSERT INTO journal VALUES(18,1794921240301,10,11908420763432593,1,1,NULL);
INSERT INTO journal VALUES(19,1794921240301,11,11908420763432593,1,1,NULL);
INSERT INTO journal VALUES(20,1794921240301,4,11908420763432593,2,1,NULL);
INSERT INTO journal VALUES(21,1794921240301,5,11908420763432593,2,1,NULL);
INSERT INTO journal VALUES(22,1794921240301,6,11908420763432593,2,1,NULL);
INSERT INTO journal VALUES(23,1794921240301,7,11908420763432593,2,1,NULL);
INSERT INTO journal VALUES(24,1794921240301,8,11908420763432593,2,1,NULL);
INSERT INTO journal VALUES(25,1794921240301,9,11908420763432593,2,1,NULL);
INSERT INTO journal VALUES(26,1794921240312,10,11908420763432593,2,1,NULL);
INSERT INTO journal VALUES(27,1794921240312,11,11908420763432593,2,1,NULL);
INSERT INTO journal VALUES(28,1794921240312,12,11908420763432593,NULL,NULL,NULL);
INSERT INTO journal VALUES(29,1794921240313,13,NULL,NULL,NULL,4592020391651853461);
INSERT INTO journal VALUES(30,1794921240314,14,NULL,NULL,NULL,4592020391651853461);
INSERT INTO journal VALUES(31,1794921240346,1,NULL,NULL,NULL,3493486039205495885);
INSERT INTO journal VALUES(32,1794921240360,2,11908420776269454,NULL,NULL,NULL);
INSERT INTO journal VALUES(33,1794921240360,3,11908420776269454,NULL,NULL,NULL);
INSERT INTO journal VALUES(34,1794921240360,4,11908420776269454,0,1,NULL);
INSERT INTO journal VALUES(35,1794921240360,5,11908420776269454,0,1,NULL);
INSERT INTO journal VALUES(36,1794921240360,6,11908420776269454,0,1,NULL);
INSERT INTO journal VALUES(37,1794921240360,7,11908420776269454,0,1,NULL);
INSERT INTO journal VALUES(38,1794921240364,8,11908420776269454,0,1,NULL);
INSERT INTO journal VALUES(39,1794921240364,9,11908420776269454,0,1,NULL);
INSERT INTO journal VALUES(40,1794921240377,10,11908420776269454,0,1,NULL);
INSERT INTO journal VALUES(41,1794921240377,11,11908420776269454,0,1,NULL);
INSERT INTO journal VALUES(42,1794921240377,4,11908420776269454,1,1,NULL);
INSERT INTO journal VALUES(43,1794921240377,5,11908420776269454,1,1,NULL);
INSERT INTO journal VALUES(44,1794921240377,6,11908420776269454,1,1,NULL);
INSERT INTO journal VALUES(45,1794921240377,7,11908420776269454,1,1,NULL);
INSERT INTO journal VALUES(46,1794921240377,8,11908420776269454,1,1,NULL);
INSERT INTO journal VALUES(47,1794921240377,9,11908420776269454,1,1,NULL);
INSERT INTO journal VALUES(48,1794921240393,15,11908420776269454,1,1,NULL);
INSERT INTO journal VALUES(49,1794921240393,16,11908420776269454,1,2,NULL);
INSERT INTO journal VALUES(50,1794921240393,5,11908420776269454,1,2,NULL);
INSERT INTO journal VALUES(51,1794921240407,6,11908420776269454,1,2,NULL);
INSERT INTO journal VALUES(52,1794921240407,7,11908420776269454,1,2,NULL);
INSERT INTO journal VALUES(53,1794921240411,8,11908420776269454,1,2,NULL);
INSERT INTO journal VALUES(54,1794921240411,9,11908420776269454,1,2,NULL);
INSERT INTO journal VALUES(55,1794921240426,15,11908420776269454,1,2,NULL);
INSERT INTO journal VALUES(56,1794921240426,17,11908420776269454,1,2,NULL);
INSERT INTO journal VALUES(57,1794921240426,18,11908420776269454,NULL,NULL,NULL);
INSERT INTO journal VALUES(58,1794921240426,19,11908420776269454,2,1,NULL);
INSERT INTO journal VALUES(59,1794921240426,20,11908420776269454,NULL,NULL,NULL);
INSERT INTO journal VALUES(60,1794921240431,13,NULL,NULL,NULL,3493486039205495885);
INSERT INTO journal VALUES(61,1794921240435,14,NULL,NULL,NULL,3493486039205495885);
INSERT INTO journal VALUES(62,1794921240475,1,NULL,NULL,NULL,2842575491120643413);
INSERT INTO journal VALUES(63,1794921240488,2,11908420793053383,NULL,NULL,NULL);
INSERT INTO journal VALUES(64,1794921240488,3,11908420793053383,NULL,NULL,NULL);
INSERT INTO journal VALUES(65,1794921240488,4,11908420793053383,0,1,NULL);
INSERT INTO journal VALUES(66,1794921240488,5,11908420793053383,0,1,NULL);
INSERT INTO journal VALUES(67,1794921240488,6,11908420793053383,0,1,NULL);
INSERT INTO journal VALUES(68,1794921240488,7,11908420793053383,0,1,NULL);
INSERT INTO journal VALUES(69,1794921240496,8,11908420793053383,0,1,NULL);
INSERT INTO journal VALUES(70,1794921240496,9,11908420793053383,0,1,NULL);
INSERT INTO journal VALUES(71,1794921240508,10,11908420793053383,0,1,NULL);
INSERT INTO journal VALUES(72,1794921240508,11,11908420793053383,0,1,NULL);
INSERT INTO journal VALUES(73,1794921240508,4,11908420793053383,1,1,NULL);
INSERT INTO journal VALUES(74,1794921240508,21,11908420793053383,1,1,3479653378839178666);
INSERT INTO journal VALUES(75,1794921240508,9,11908420793053383,1,1,NULL);
INSERT INTO journal VALUES(76,1794921240512,13,NULL,NULL,NULL,2842575491120643413);
INSERT INTO journal VALUES(77,1794921240515,14,NULL,NULL,NULL,2842575491120643413);
INSERT INTO journal VALUES(78,1794921240544,1,NULL,NULL,NULL,165738532020321480);
INSERT INTO journal VALUES(79,1794921240552,2,11908420802148465,NULL,NULL,NULL);
INSERT INTO journal VALUES(80,1794921240552,3,11908420802148465,NULL,NULL,NULL);
INSERT INTO journal VALUES(81,1794921240552,4,11908420802148465,0,1,NULL);
INSERT INTO journal VALUES(82,1794921240552,9,11908420802148465,0,1,NULL);
INSERT INTO journal VALUES(83,1794921240552,22,11908420802148465,2,1,NULL);
INSERT INTO journal VALUES(84,1794921240552,22,11908420802148465,3,1,NULL);
INSERT INTO journal VALUES(85,1794921240552,22,11908420802148465,4,1,NULL);
INSERT INTO journal VALUES(86,1794921240552,4,11908420802148465,2,1,NULL);
INSERT INTO journal VALUES(87,1794921240552,5,11908420802148465,2,1,NULL);
INSERT INTO journal VALUES(88,1794921240552,6,11908420802148465,2,1,NULL);
INSERT INTO journal VALUES(89,1794921240552,7,11908420802148465,2,1,NULL);
INSERT INTO journal VALUES(90,1794921240552,4,11908420802148465,3,1,NULL);
INSERT INTO journal VALUES(91,1794921240552,5,11908420802148465,3,1,NULL);
INSERT INTO journal VALUES(92,1794921240552,6,11908420802148465,3,1,NULL);
INSERT INTO journal VALUES(93,1794921240552,7,11908420802148465,3,1,NULL);
INSERT INTO journal VALUES(94,1794921240552,4,11908420802148465,4,1,NULL);
INSERT INTO journal VALUES(95,1794921240552,5,11908420802148465,4,1,NULL);
INSERT INTO journal VALUES(96,1794921240552,6,11908420802148465,4,1,NULL);
INSERT INTO journal VALUES(97,1794921240552,7,11908420802148465,4,1,NULL);
INSERT INTO journal VALUES(98,1794921240557,8,11908420802148465,2,1,NULL);
INSERT INTO journal VALUES(99,1794921240557,9,11908420802148465,2,1,NULL);
INSERT INTO journal VALUES(100,1794921240557,8,11908420802148465,3,1,NULL);
INSERT INTO journal VALUES(101,1794921240557,9,11908420802148465,3,1,NULL);
INSERT INTO journal VALUES(102,1794921240557,8,11908420802148465,4,1,NULL);
INSERT INTO journal VALUES(103,1794921240557,9,11908420802148465,4,1,NULL);
INSERT INTO journal VALUES(104,1794921240577,10,11908420802148465,4,1,NULL);
INSERT INTO journal VALUES(105,1794921240577,11,11908420802148465,4,1,NULL);
INSERT INTO journal VALUES(106,1794921240583,10,11908420802148465,2,1,NULL);
INSERT INTO journal VALUES(107,1794921240583,11,11908420802148465,2,1,NULL);
INSERT INTO journal VALUES(108,1794921240583,10,11908420802148465,3,1,NULL);
INSERT INTO journal VALUES(109,1794921240583,11,11908420802148465,3,1,NULL);
INSERT INTO journal VALUES(110,1794921240583,11,11908420802148465,0,1,NULL);
INSERT INTO journal VALUES(111,1794921240583,4,11908420802148465,1,1,NULL);
INSERT INTO journal VALUES(112,1794921240583,5,11908420802148465,1,1,NULL);
INSERT INTO journal VALUES(113,1794921240583,6,11908420802148465,1,1,NULL);
INSERT INTO journal VALUES(114,1794921240583,7,11908420802148465,1,1,NULL);
INSERT INTO journal VALUES(115,1794921240583,8,11908420802148465,1,1,NULL);
INSERT INTO journal VALUES(116,1794921240583,9,11908420802148465,1,1,NULL);
INSERT INTO journal VALUES(117,1794921240597,10,11908420802148465,1,1,NULL);
INSERT INTO journal VALUES(118,1794921240597,11,11908420802148465,1,1,NULL);
INSERT INTO journal VALUES(119,1794921240597,12,11908420802148465,NULL,NULL,NULL);
INSERT INTO journal VALUES(120,1794921240598,13,NULL,NULL,NULL,165738532020321480);
INSERT INTO journal VALUES(121,1794921240600,14,NULL,NULL,NULL,165738532020321480);
INSERT INTO journal VALUES(122,1794921240646,1,NULL,NULL,NULL,4436854024740394134);
INSERT INTO journal VALUES(123,1794921240661,2,11908420815480414,NULL,NULL,NULL);
INSERT INTO journal VALUES(124,1794921240661,3,11908420815480414,NULL,NULL,NULL);
INSERT INTO journal VALUES(125,1794921240661,4,11908420815480414,0,1,NULL);
INSERT INTO journal VALUES(126,1794921240661,5,11908420815480414,0,1,NULL);
INSERT INTO journal VALUES(127,1794921240661,6,11908420815480414,0,1,NULL);
INSERT INTO journal VALUES(128,1794921240661,7,11908420815480414,0,1,NULL);
INSERT INTO journal VALUES(129,1794921240663,8,11908420815480414,0,1,NULL);
INSERT INTO journal VALUES(130,1794921240663,9,11908420815480414,0,1,NULL);
INSERT INTO journal VALUES(131,1794921240671,23,11908420815480414,NULL,NULL,3189273773592662721);
INSERT INTO journal VALUES(132,1794921240691,24,11908420815480414,NULL,NULL,3189273773592662721);
INSERT INTO journal VALUES(133,1794921240771,10,11908420815480414,0,1,NULL);
INSERT INTO journal VALUES(134,1794921240771,11,11908420815480414,0,1,NULL);
INSERT INTO journal VALUES(135,1794921240771,4,11908420815480414,1,1,NULL);
INSERT INTO journal VALUES(136,1794921240771,5,11908420815480414,1,1,NULL);
INSERT INTO journal VALUES(137,1794921240771,6,11908420815480414,1,1,NULL);
INSERT INTO journal VALUES(138,1794921240771,7,11908420815480414,1,1,NULL);
INSERT INTO journal VALUES(139,1794921240771,8,11908420815480414,1,1,NULL);
INSERT INTO journal VALUES(140,1794921240771,9,11908420815480414,1,1,NULL);
INSERT INTO journal VALUES(141,1794921240875,10,11908420815480414,1,1,NULL);
INSERT INTO journal VALUES(142,1794921240875,11,11908420815480414,1,1,NULL);
INSERT INTO journal VALUES(143,1794921240875,12,11908420815480414,NULL,NULL,NULL);
INSERT INTO journal VALUES(144,1794921240877,13,NULL,NULL,NULL,4436854024740394134);
INSERT INTO journal VALUES(145,1794921240877,14,NULL,NULL,NULL,4436854024740394134);
INSERT INTO journal VALUES(146,1794921240895,25,11908420815480414,NULL,NULL,3189273773592662721);
INSERT INTO journal VALUES(147,1794921240967,26,11908420815480414,NULL,NULL,3189273773592662721);
INSERT INTO journal VALUES(148,1794921240992,2,11908420860961327,NULL,NULL,NULL);
INSERT INTO journal VALUES(149,1794921240992,3,11908420860961327,NULL,NULL,NULL);
INSERT INTO journal VALUES(150,1794921240992,4,11908420860961327,0,1,NULL);
INSERT INTO journal VALUES(151,1794921240992,5,11908420860961327,0,1,NULL);
INSERT INTO journal VALUES(152,1794921240992,6,11908420860961327,0,1,NULL);
INSERT INTO journal VALUES(153,1794921240992,7,11908420860961327,0,1,NULL);
INSERT INTO journal VALUES(154,1794921241024,2,11908420865051549,NULL,NULL,NULL);
INSERT INTO journal VALUES(155,1794921241024,3,11908420865051549,NULL,NULL,NULL);
INSERT INTO journal VALUES(156,1794921241024,4,11908420865051549,0,1,NULL);
INSERT INTO journal VALUES(157,1794921241024,21,11908420865051549,0,1,2841030708077389296);
INSERT INTO journal VALUES(158,1794921241024,9,11908420865051549,0,1,NULL);
INSERT INTO journal VALUES(159,1794921241057,2,11908420869432594,NULL,NULL,NULL);
INSERT INTO journal VALUES(160,1794921241057,3,11908420869432594,NULL,NULL,NULL);
INSERT INTO journal VALUES(161,1794921241057,4,11908420869432594,0,1,NULL);
INSERT INTO journal VALUES(162,1794921241057,5,11908420869432594,0,1,NULL);
INSERT INTO journal VALUES(163,1794921241057,6,11908420869432594,0,1,NULL);
INSERT INTO journal VALUES(164,1794921241057,7,11908420869432594,0,1,NULL);
INSERT INTO journal VALUES(165,1794921241363,27,11908420869432594,NULL,NULL,NULL);
INSERT INTO journal VALUES(166,1794921241363,28,11908420869432594,0,1,NULL);
INSERT INTO journal VALUES(167,1794921241363,29,11908420869432594,0,1,NULL);
INSERT INTO journal VALUES(168,1794921241363,30,11908420869432594,0,1,NULL);
INSERT INTO journal VALUES(169,1794921241363,19,11908420869432594,1,1,NULL);
INSERT INTO journal VALUES(170,1794921241363,19,11908420869432594,2,1,NULL);
INSERT INTO journal VALUES(171,1794921241363,31,11908420869432594,NULL,NULL,NULL);
INSERT INTO journal VALUES(172,1794921249851,2,11908422022073185,NULL,NULL,NULL);
INSERT INTO journal VALUES(173,1794921249851,3,11908422022073185,NULL,NULL,NULL);
INSERT INTO journal VALUES(174,1794921249851,4,11908422022073185,0,1,NULL);
INSERT INTO journal VALUES(175,1794921249851,9,11908422022073185,0,1,NULL);
INSERT INTO journal VALUES(176,1794921257798,22,11908422022073185,1,1,NULL);
INSERT INTO journal VALUES(177,1794921257798,4,11908422022073185,1,1,NULL);
INSERT INTO journal VALUES(178,1794921257798,5,11908422022073185,1,1,NULL);
INSERT INTO journal VALUES(179,1794921257798,6,11908422022073185,1,1,NULL);
INSERT INTO journal VALUES(180,1794921257798,7,11908422022073185,1,1,NULL);
INSERT INTO journal VALUES(181,1794921257835,22,11908422022073185,2,1,NULL);
INSERT INTO journal VALUES(182,1794921257835,4,11908422022073185,2,1,NULL);
INSERT INTO journal VALUES(183,1794921257835,5,11908422022073185,2,1,NULL);
INSERT INTO journal VALUES(184,1794921257835,6,11908422022073185,2,1,NULL);
INSERT INTO journal VALUES(185,1794921257835,7,11908422022073185,2,1,NULL);
INSERT INTO journal VALUES(186,1794921257874,22,11908422022073185,3,1,NULL);
INSERT INTO journal VALUES(187,1794921257874,4,11908422022073185,3,1,NULL);
INSERT INTO journal VALUES(188,1794921257874,5,11908422022073185,3,1,NULL);
INSERT INTO journal VALUES(189,1794921257874,6,11908422022073185,3,1,NULL);
INSERT INTO journal VALUES(190,1794921257874,7,11908422022073185,3,1,NULL);
INSERT INTO journal VALUES(191,1794921257907,1,NULL,NULL,NULL,2679348442768665304);
INSERT INTO journal VALUES(192,1794921257907,8,11908422022073185,1,1,NULL);
INSERT INTO journal VALUES(193,1794921257907,9,11908422022073185,1,1,NULL);
INSERT INTO journal VALUES(194,1794921258169,10,11908422022073185,1,1,NULL);
INSERT INTO journal VALUES(195,1794921258169,11,11908422022073185,1,1,NULL);
INSERT INTO journal VALUES(196,1794921258202,8,11908422022073185,2,1,NULL);
INSERT INTO journal VALUES(197,1794921258202,9,11908422022073185,2,1,NULL);
CREATE TABLE outbox (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    kind          TEXT    NOT NULL,
    run           INTEGER NOT NULL,
    payload       TEXT    NOT NULL,
    attempts      INTEGER NOT NULL,
    not_before_ms INTEGER NOT NULL,
    error         TEXT
);
INSERT INTO outbox VALUES(5,'run.ended',11908420869432594,'{}',0,1794921241363,NULL);
CREATE TABLE timers (
    due_ms  INTEGER NOT NULL,
    run     INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    PRIMARY KEY (due_ms, run, step, attempt)
) WITHOUT ROWID;
CREATE TABLE refusals (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    run     INTEGER NOT NULL,
    at_ms   INTEGER NOT NULL,
    entity  TEXT    NOT NULL,
    step    INTEGER,
    attempt INTEGER,
    number  INTEGER,
    event   TEXT    NOT NULL,
    actor   TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    detail  TEXT    NOT NULL
);
CREATE TABLE queues (
    name    TEXT PRIMARY KEY,
    maximum INTEGER,
    held    INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE places (
    grp TEXT    NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (grp, run)
) WITHOUT ROWID;
CREATE TABLE items (
    run     INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    no      INTEGER NOT NULL,
    value   TEXT    NOT NULL,
    PRIMARY KEY (run, step, attempt, no)
) WITHOUT ROWID;
INSERT INTO items VALUES(11908420802148465,0,1,0,'"a"');
INSERT INTO items VALUES(11908420802148465,0,1,1,'"b"');
INSERT INTO items VALUES(11908420802148465,0,1,2,'"c"');
INSERT INTO items VALUES(11908422022073185,0,1,0,'{"text":"do one"}');
INSERT INTO items VALUES(11908422022073185,0,1,1,'{"text":"do two"}');
INSERT INTO items VALUES(11908422022073185,0,1,2,'{"text":"do three"}');
CREATE TABLE signals (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    run     INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    payload TEXT    NOT NULL
);
CREATE TABLE boards (
    run        INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    goal       TEXT    NOT NULL,
    plan       TEXT    NOT NULL,
    queue      TEXT    NOT NULL,
    open       INTEGER NOT NULL,
    created_ms INTEGER NOT NULL
);
INSERT INTO boards VALUES(11908422022073185,'sprint','ship','','board/sprint/0ajemp87c2v1',1,1794921249851);
CREATE TABLE task_keys (
    run INTEGER NOT NULL,
    key TEXT    NOT NULL,
    no  INTEGER NOT NULL,
    PRIMARY KEY (run, key)
) WITHOUT ROWID;
CREATE TABLE task_needs (
    run      INTEGER NOT NULL,
    no       INTEGER NOT NULL,
    need     INTEGER NOT NULL,
    tolerant INTEGER NOT NULL,
    PRIMARY KEY (run, no, need)
) WITHOUT ROWID;
CREATE TABLE notes (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    run    INTEGER NOT NULL,
    author TEXT    NOT NULL,
    tag    TEXT    NOT NULL,
    text   TEXT    NOT NULL,
    at_ms  INTEGER NOT NULL
);
CREATE TABLE tokens (
    id         INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    hash       TEXT    NOT NULL UNIQUE,
    scopes     TEXT    NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER
);
INSERT INTO tokens VALUES(3689129085900989187,'ci','c196becb18e76af87a5dedecb302f09e092c535f1e8c98a1a0b4c50320aeabda','read',1794921250186,NULL);
CREATE TABLE hooks (
    id             INTEGER PRIMARY KEY,
    url            TEXT    NOT NULL,
    secret         TEXT    NOT NULL,
    filter         TEXT    NOT NULL,
    seq            INTEGER NOT NULL,
    failures       INTEGER NOT NULL,
    next_try_ms    INTEGER NOT NULL,
    parked         TEXT,
    error          TEXT,
    holder         INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    created_ms     INTEGER NOT NULL
);
INSERT INTO hooks VALUES(499581301472549178,'http://127.0.0.1:9/x','52a67df3d2c5808e2b0474e6b5ed208c634f198a684d2877630caa3abe51f478','{"events":["run.failed"]}',175,0,0,NULL,NULL,0,0,1794921250226);
CREATE TABLE journal_notes (
    seq  INTEGER PRIMARY KEY,
    note TEXT NOT NULL
);
INSERT INTO journal_notes VALUES(131,'{"path":"@DATA@/worktrees/0ajemn48nsjy"}');
INSERT INTO journal_notes VALUES(132,'{"path":"@DATA@/worktrees/0ajemn48nsjy"}');
INSERT INTO journal_notes VALUES(146,'{"path":"@DATA@/worktrees/0ajemn48nsjy"}');
INSERT INTO journal_notes VALUES(147,'{"path":"@DATA@/worktrees/0ajemn48nsjy"}');
ANALYZE sqlite_schema;
INSERT INTO sqlite_stat1 VALUES('workers','workers_there','0 0');
INSERT INTO sqlite_stat1 VALUES('workers',NULL,'1');
INSERT INTO sqlite_stat1 VALUES('sentences','sqlite_autoindex_sentences_1','14 4 1 1 1 1');
INSERT INTO sqlite_stat1 VALUES('steps','steps_items_waiting','0 0 0 0');
INSERT INTO sqlite_stat1 VALUES('steps','steps_items','0 0 0 0');
INSERT INTO sqlite_stat1 VALUES('steps','steps','3 3 1');
INSERT INTO sqlite_stat1 VALUES('meta','meta','2 1');
INSERT INTO sqlite_stat1 VALUES('executions','executions_leased','0 0 0 0 0');
INSERT INTO sqlite_stat1 VALUES('executions','executions_requested','0 0 0 0 0 0 0');
INSERT INTO sqlite_stat1 VALUES('executions','executions_claimable','0 0 0 0 0 0 0 0');
INSERT INTO sqlite_stat1 VALUES('executions','executions_live','0 0 0');
INSERT INTO sqlite_stat1 VALUES('executions','executions','3 3 1 1');
INSERT INTO sqlite_stat1 VALUES('runs','runs_of_parent','0 0 0');
INSERT INTO sqlite_stat1 VALUES('runs','runs_children','0 0 0');
INSERT INTO sqlite_stat1 VALUES('runs','runs_queued','0 0 0 0');
INSERT INTO sqlite_stat1 VALUES('runs','runs_pinned','0 0');
INSERT INTO sqlite_stat1 VALUES('runs','runs_live','0 0');
INSERT INTO sqlite_stat1 VALUES('runs','runs_by_key','0 0');
INSERT INTO sqlite_stat1 VALUES('runs',NULL,'1');
INSERT INTO sqlite_stat1 VALUES('gates','gates_open_everywhere','1 1');
INSERT INTO sqlite_stat1 VALUES('gates','gates_open','1 1 1');
INSERT INTO sqlite_stat1 VALUES('gates',NULL,'1');
INSERT INTO sqlite_stat1 VALUES('items','items','3 3 3 3 1');
INSERT INTO sqlite_stat1 VALUES('environments','environments_there','0 0');
INSERT INTO sqlite_stat1 VALUES('environments','environments_of','1 1 1');
INSERT INTO sqlite_stat1 VALUES('environments',NULL,'1');
INSERT INTO sqlite_stat1 VALUES('boards','boards_by_name','1 1 1');
INSERT INTO sqlite_stat1 VALUES('boards','boards_open','1 1');
INSERT INTO sqlite_stat1 VALUES('tokens','sqlite_autoindex_tokens_1','1 1');
ANALYZE sqlite_schema;
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('outbox',5);
CREATE UNIQUE INDEX runs_by_key ON runs (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_live ON runs (id)
    WHERE status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling';
CREATE INDEX runs_pinned ON runs (pin)
    WHERE pin <> 0 AND (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling');
CREATE INDEX runs_queued ON runs (grp, priority DESC, id) WHERE status = 'queued';
CREATE UNIQUE INDEX executions_live ON executions (run, step)
    WHERE status = 'requested' OR status = 'scheduling' OR status = 'scheduled' OR status = 'running';
CREATE INDEX executions_claimable ON executions (queue, pin, priority DESC, published_ms, run, step, attempt)
    WHERE status = 'scheduled';
CREATE INDEX executions_requested ON executions (queue, priority DESC, created_ms, run, step, attempt)
    WHERE status = 'requested';
CREATE INDEX executions_leased ON executions (lease_until_ms, run, step, attempt) WHERE status = 'running';
CREATE INDEX workers_there ON workers (id) WHERE status <> 'offline';
CREATE INDEX timers_of ON timers (run, step, attempt);
CREATE INDEX refusals_of ON refusals (run, id);
CREATE INDEX runs_children ON runs (parent_run, id)
    WHERE parent_run IS NOT NULL
      AND (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling');
CREATE INDEX steps_items ON steps (run, item_of, no) WHERE item_of IS NOT NULL;
CREATE INDEX steps_items_waiting ON steps (run, item_of, no) WHERE item_of IS NOT NULL AND status = 'waiting';
CREATE INDEX gates_open ON gates (run, opened_ms) WHERE status = 'open';
CREATE INDEX signals_of ON signals (run, name, id);
CREATE UNIQUE INDEX environments_of ON environments (run, coalesce(scope, -1)) WHERE run IS NOT NULL;
CREATE INDEX environments_there ON environments (id) WHERE status <> 'destroyed';
CREATE UNIQUE INDEX boards_open ON boards (name) WHERE open;
CREATE INDEX boards_by_name ON boards (name, run);
CREATE INDEX task_needs_by_need ON task_needs (run, need, no);
CREATE INDEX notes_of ON notes (run, id);
CREATE INDEX notes_tagged ON notes (run, tag, id);
CREATE INDEX gates_open_everywhere ON gates (id) WHERE status = 'open';
CREATE INDEX runs_of_parent ON runs (parent_run, id) WHERE parent_run IS NOT NULL;
COMMIT;
