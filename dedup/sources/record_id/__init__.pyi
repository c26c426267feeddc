from dedup.sources.record_id.canonical import of_values as of_values
from dedup.sources.record_id.recipe import IdRecipe as IdRecipe
from dedup.sources.record_id.recipe import from_columns as from_columns
from dedup.sources.record_id.recipe import from_file as from_file
from dedup.sources.record_id.recipe import from_kafka as from_kafka
from dedup.sources.record_id.recipe import read_lines as read_lines
