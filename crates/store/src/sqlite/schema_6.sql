-- A run that is forgotten takes the runs that were its steps' work with it, however long ago they ended.
CREATE INDEX runs_of_parent ON runs (parent_run, id) WHERE parent_run IS NOT NULL;
