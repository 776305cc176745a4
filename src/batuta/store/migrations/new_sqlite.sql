CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0022');
CREATE TABLE answers (
    tenant TEXT NOT NULL,
    digest BLOB NOT NULL,
    run_id TEXT NOT NULL,
    expires FLOAT NOT NULL,
    family BLOB,
    vector BLOB,
    CONSTRAINT pk_answers PRIMARY KEY (tenant, digest)
);
CREATE TABLE approvals (
    id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    rule TEXT NOT NULL,
    digest TEXT NOT NULL,
    "plan" TEXT NOT NULL,
    usd TEXT NOT NULL,
    state TEXT NOT NULL,
    created FLOAT NOT NULL,
    expires FLOAT NOT NULL,
    "by" TEXT NOT NULL,
    reason TEXT NOT NULL, edit TEXT DEFAULT '' NOT NULL, written TEXT DEFAULT '' NOT NULL, steps TEXT DEFAULT '' NOT NULL, edited_by TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_approvals PRIMARY KEY (id)
);
CREATE TABLE audit (
    seq BIGINT NOT NULL,
    at FLOAT NOT NULL,
    actor TEXT NOT NULL,
    tenant TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    details TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL,
    CONSTRAINT pk_audit PRIMARY KEY (seq)
);
CREATE TABLE counted_judgements (
    run_id TEXT NOT NULL,
    CONSTRAINT pk_counted_judgements PRIMARY KEY (run_id)
);
CREATE TABLE explored_arms (
    system TEXT NOT NULL,
    cell TEXT NOT NULL,
    arm TEXT NOT NULL,
    score FLOAT NOT NULL,
    judged FLOAT NOT NULL,
    CONSTRAINT pk_explored_arms PRIMARY KEY (system, cell, arm)
);
CREATE TABLE files (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    media_type TEXT NOT NULL,
    purpose TEXT NOT NULL,
    created FLOAT NOT NULL,
    expires FLOAT,
    size BIGINT NOT NULL,
    content BLOB NOT NULL,
    text BLOB,
    fault TEXT NOT NULL, vectors BLOB,
    CONSTRAINT pk_files PRIMARY KEY (id)
);
CREATE TABLE forgotten (
    name TEXT NOT NULL,
    at FLOAT NOT NULL,
    CONSTRAINT pk_forgotten PRIMARY KEY (name)
);
CREATE TABLE idempotent (
    tenant TEXT NOT NULL,
    "key" TEXT NOT NULL,
    digest BLOB NOT NULL,
    owner TEXT NOT NULL,
    expires FLOAT NOT NULL,
    status INTEGER,
    headers BLOB,
    body BLOB, run_id TEXT,
    CONSTRAINT pk_idempotent PRIMARY KEY (tenant, "key")
);
CREATE TABLE keys (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    old_digest BLOB,
    old_until FLOAT,
    policy TEXT NOT NULL,
    created FLOAT NOT NULL,
    expires FLOAT,
    revoked FLOAT, identity TEXT, role TEXT, user TEXT,
    CONSTRAINT pk_keys PRIMARY KEY (id),
    CONSTRAINT fk_keys_tenant FOREIGN KEY(tenant) REFERENCES tenants (name)
);
CREATE TABLE ledger (
    run_id TEXT NOT NULL,
    line INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    "key" TEXT,
    at FLOAT NOT NULL,
    day TEXT NOT NULL,
    model TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    calls BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    estimated_calls BIGINT NOT NULL,
    usd TEXT NOT NULL,
    unpriced_calls BIGINT NOT NULL,
    assumed_usd TEXT NOT NULL,
    CONSTRAINT pk_ledger PRIMARY KEY (run_id, line)
);
CREATE TABLE refusals (
    hour TEXT NOT NULL,
    tenant TEXT NOT NULL,
    "key" TEXT NOT NULL,
    code TEXT NOT NULL,
    requests BIGINT NOT NULL,
    CONSTRAINT pk_refusals PRIMARY KEY (hour, tenant, "key", code)
);
CREATE TABLE reservations (
    id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    "key" TEXT,
    model TEXT NOT NULL,
    buckets TEXT NOT NULL,
    nano BIGINT NOT NULL,
    created FLOAT NOT NULL,
    owner TEXT NOT NULL,
    expires FLOAT NOT NULL,
    CONSTRAINT pk_reservations PRIMARY KEY (id)
);
CREATE TABLE responses (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    created FLOAT NOT NULL,
    status TEXT NOT NULL,
    previous TEXT,
    body BLOB NOT NULL,
    input BLOB NOT NULL,
    events BLOB,
    CONSTRAINT pk_responses PRIMARY KEY (id, tenant)
);
CREATE TABLE run_contents (
    run_id TEXT NOT NULL,
    format INTEGER NOT NULL,
    body BLOB NOT NULL, created FLOAT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_run_contents PRIMARY KEY (run_id),
    CONSTRAINT fk_run_contents_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE runs (
    id TEXT NOT NULL,
    tenant TEXT DEFAULT 'local' NOT NULL,
    parent TEXT,
    created FLOAT NOT NULL,
    model TEXT NOT NULL,
    conductor TEXT NOT NULL,
    outcome TEXT NOT NULL,
    error_code TEXT,
    question_preview TEXT NOT NULL,
    answer_preview TEXT,
    steps INTEGER NOT NULL,
    rounds INTEGER NOT NULL,
    calls BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    reasoning_tokens BIGINT NOT NULL,
    usd TEXT NOT NULL,
    unpriced_calls BIGINT NOT NULL,
    seconds FLOAT NOT NULL,
    score FLOAT,
    score_comment TEXT, session TEXT, labels TEXT, alone_usd TEXT, shadow TEXT, shadow_usd TEXT,
    acting TEXT, took_over_from TEXT, turn TEXT, reason TEXT,
    CONSTRAINT pk_runs PRIMARY KEY (id)
);
CREATE TABLE spending (
    account TEXT NOT NULL,
    period TEXT NOT NULL,
    spent BIGINT NOT NULL,
    reserved BIGINT NOT NULL,
    CONSTRAINT pk_spending PRIMARY KEY (account, period)
);
CREATE TABLE tenants (
    name TEXT NOT NULL,
    created FLOAT NOT NULL,
    per_day TEXT,
    per_month TEXT,
    CONSTRAINT pk_tenants PRIMARY KEY (name)
);
CREATE TABLE waiting_runs (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    expires FLOAT NOT NULL,
    size INTEGER NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT pk_waiting_runs PRIMARY KEY (tenant, run_id)
);
CREATE TABLE worker_drift (
    worker TEXT NOT NULL,
    model TEXT NOT NULL,
    kind TEXT NOT NULL,
    reference TEXT NOT NULL,
    state TEXT NOT NULL,
    CONSTRAINT pk_worker_drift PRIMARY KEY (worker, model, kind, reference)
);
CREATE INDEX ix_keys_tenant ON keys (tenant);
CREATE INDEX ix_ledger_day_tenant ON ledger (day, tenant);
CREATE INDEX ix_ledger_tenant_day ON ledger (tenant, day);
CREATE INDEX ix_reservations_expires ON reservations (expires);
CREATE INDEX ix_reservations_owner ON reservations (owner);
CREATE INDEX ix_idempotent_expires ON idempotent (expires);
CREATE INDEX ix_responses_tenant_created ON responses (tenant, created);
CREATE INDEX ix_runs_parent ON runs (parent);
CREATE INDEX ix_responses_tenant_previous ON responses (tenant, previous);
CREATE INDEX ix_idempotent_run_id ON idempotent (run_id);
CREATE INDEX ix_runs_model_created_id ON runs (model, created, id);
CREATE INDEX ix_runs_outcome_created_id ON runs (outcome, created, id);
CREATE INDEX ix_answers_expires ON answers (expires);
CREATE INDEX ix_answers_run_id ON answers (run_id);
CREATE INDEX ix_answers_tenant_family_expires ON answers (tenant, family, expires);
CREATE UNIQUE INDEX ix_keys_identity ON keys (identity);
CREATE INDEX ix_keys_user ON keys (user);
CREATE INDEX ix_runs_session_created_id ON runs (session, created, id);
CREATE INDEX ix_runs_created_figures ON runs (created, id, model, outcome, session, labels, input_tokens, output_tokens, usd, unpriced_calls, seconds, score);
CREATE INDEX ix_runs_tenant_figures ON runs (tenant, created, id, model, outcome, session, labels, input_tokens, output_tokens, usd, unpriced_calls, seconds, score);
CREATE INDEX ix_files_tenant_created ON files (tenant, created);
CREATE INDEX ix_files_expires ON files (expires);
CREATE INDEX ix_waiting_runs_expires ON waiting_runs (expires);
