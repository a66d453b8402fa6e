-- What a worker has that steps may ask for, separated by commas.
ALTER TABLE workers ADD COLUMN labels TEXT NOT NULL DEFAULT '';
