-- The attempt that the items of a fan-out's list begin with, the last of the numbers: those of existing lists began with 1.
UPDATE steps SET items = items || ' 1' WHERE items IS NOT NULL;
