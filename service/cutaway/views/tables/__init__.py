"""Results as tables for a terminal: rich renderables, for the command line and for any script.

    from rich.console import Console

    Console().print(*tables.result_tables(result))

Names that the model's author chose become `Text`, never markup: ``layers[0]`` is a name and no style.
"""

from cutaway.views.tables.attributions import VERDICT_STYLES as VERDICT_STYLES
from cutaway.views.tables.attributions import attribution_table as attribution_table
from cutaway.views.tables.attributions import verdict_text as verdict_text
from cutaway.views.tables.cells import empty_table as empty_table
from cutaway.views.tables.cells import module_text as module_text
from cutaway.views.tables.cells import shape_text as shape_text
from cutaway.views.tables.predictions import capture_table as capture_table
from cutaway.views.tables.predictions import gradient_table as gradient_table
from cutaway.views.tables.predictions import parameter_table as parameter_table
from cutaway.views.tables.predictions import prediction_table as prediction_table
from cutaway.views.tables.predictions import target_table as target_table
from cutaway.views.tables.reply import estimate_table as estimate_table
from cutaway.views.tables.reply import provenance_line as provenance_line
from cutaway.views.tables.reply import result_tables as result_tables
from cutaway.views.tables.reply import timing_table as timing_table
from cutaway.views.tables.reply import warning_lines as warning_lines
