"""Where entries of `before.json` are now: moved, removed or changed, section by section.

A key that ends in `*` stands for all entries that begin so; in `MOVED` its value ends in `*` too,
and what the star stood for is kept. Exact keys win, then the longest beginning. Renamed tests are
in `tests.json`.
"""

import json
from pathlib import Path

_TESTS = json.loads(Path(__file__).with_name("tests.json").read_text(encoding="utf-8"))

_CLASSES = {
    "eligo.demos.data.sampler_config:SamplerConfig*": "eligo.shots.config:SamplerConfig*",
    "eligo.demos.exam.config:ArmConfig*": "benchmarks.shots.config:VariantConfig*",
    "eligo.demos.exam.config:ExamConfig*": "benchmarks.shots.config:StudyConfig*",
    "eligo.demos.exam.config:LexiconsConfig*": "benchmarks.shots.config:LexiconsConfig*",
    "eligo.demos.exam.learner_config:LearnerConfig*": "benchmarks.shots.config:LearnerConfig*",
    "eligo.demos.hosts.config:DemosHostConfig*": "eligo.shots.config:ShotsHostConfig*",
    "eligo.demos.learned.config:FitConfig*": "eligo.shots.config:FitConfig*",
    "eligo.demos.models.config:PointerConfig*": "eligo.shots.config:PointerConfig*",
    "eligo.demos.models.config:PointerSelectorV0Config*": (
        "eligo.shots.config:PointerSelectorV0Config*"
    ),
    "eligo.demos.models.config:PointerSelectorV1Config*": (
        "eligo.shots.config:PointerSelectorV1Config*"
    ),
    "eligo.demos.models.config:PointerSelectorV2Config*": (
        "eligo.shots.config:PointerSelectorV2Config*"
    ),
    "eligo.demos.models.config:PointerSelectorV3Config*": (
        "eligo.shots.config:PointerSelectorV3Config*"
    ),
    "eligo.demos.models.config:_HeadsConfig*": "eligo.shots.config:_HeadsConfig*",
    "eligo.demos.pipeline.config:DemosTrainConfig*": "eligo.shots.config:ShotsTrainConfig*",
    "eligo.demos.pipeline.config:RecordsConfig*": "eligo.shots.config:RecordsConfig*",
    "eligo.demos.pipeline.config:SelectorTrainConfig*": "eligo.shots.config:SelectorTrainConfig*",
    "eligo.demos.teach.config:TeachConfig*": "eligo.shots.config:TeachConfig*",
    "eligo.patches.data.config:KarpathyDataConfig*": "eligo.patches.config:KarpathyDataConfig*",
    "eligo.patches.data.config:ScenesDataConfig*": "eligo.patches.config:ScenesDataConfig*",
    "eligo.patches.exam.config:ExamConfig*": "benchmarks.patches.study:StudyConfig*",
    "eligo.patches.training.config:PatchesTrainConfig*": "eligo.patches.config:PatchesTrainConfig*",
    "eligo.pixels.data.config:AugmentConfig*": "eligo.pixels.config:AugmentConfig*",
    "eligo.pixels.data.config:FilesConfig*": "eligo.pixels.config:FilesConfig*",
    "eligo.pixels.data.config:InputsConfig*": "eligo.pixels.config:InputsConfig*",
    "eligo.pixels.data.config:JsonlDataConfig*": "eligo.pixels.config:JsonlDataConfig*",
    "eligo.pixels.data.config:NyuDataConfig*": "eligo.pixels.config:NyuDataConfig*",
    "eligo.pixels.data.config:RoomsDataConfig*": "eligo.pixels.config:RoomsDataConfig*",
    "eligo.pixels.data.config:ScenesDataConfig*": "eligo.pixels.config:ScenesDataConfig*",
    "eligo.pixels.data.config:SunDataConfig*": "eligo.pixels.config:SunDataConfig*",
    "eligo.pixels.exam.config:ExamConfig*": "benchmarks.pixels.variants:StudyConfig*",
    "eligo.pixels.inference.config:SegmenterConfig*": "eligo.pixels.config:SegmenterConfig*",
    "eligo.pixels.text.config:ClipTextConfig*": "eligo.pixels.config:ClipTextConfig*",
    "eligo.pixels.text.config:TableTextConfig*": "eligo.pixels.config:TableTextConfig*",
    "eligo.pixels.text.config:TextConfig*": "eligo.pixels.config:TextConfig*",
    "eligo.pixels.text.config:WordsTextConfig*": "eligo.pixels.config:WordsTextConfig*",
    "eligo.pixels.training.config:PixelsTrainConfig*": "eligo.pixels.config:PixelsTrainConfig*",
    "eligo.scenes.config:VlmEvaluationConfig*": (
        "benchmarks.scenes.evaluate_vlm:VlmEvaluationConfig*"
    ),
    "eligo.scenes.config:VlmTrainConfig*": "benchmarks.scenes.train_vlm:VlmTrainConfig*",
    "eligo.scenes.stats_config:StatsConfig*": "benchmarks.scenes.stats:StatsConfig*",
    "eligo.tokens.learned.discriminator:DiscriminatorShape*": (
        "eligo.tokens.model.discriminator:DiscriminatorShape*"
    ),
    "eligo.tokens.learned.modules:MergerShape*": "eligo.tokens.model.token_merger:MergerShape*",
    "eligo.tokens.learned.modules:PrunersShape*": "eligo.tokens.model.layer_pruners:PrunersShape*",
    "eligo.tokens.measure.exam_config:ExamConfig*": "benchmarks.tokens.config:StudyConfig*",
    "eligo.tokens.measure.exam_config:Training*": "benchmarks.tokens.config:Training*",
    "eligo.tokens.measure.sweep_config:SweepConfig*": "eligo.tokens.config:SweepConfig*",
    "eligo.tokens.methods.attention:FastV*": "eligo.tokens.methods.fastv:FastV*",
    "eligo.tokens.methods.attention:PyramidDrop*": "eligo.tokens.methods.pyramiddrop:PyramidDrop*",
    "eligo.tokens.methods.diverse:CDPruner*": "eligo.tokens.methods.cdpruner:CDPruner*",
    "eligo.tokens.methods.diverse:DivPrune*": "eligo.tokens.methods.divprune:DivPrune*",
    "eligo.tokens.methods.method:Method*": "eligo.tokens.methods.base:Method*",
    "eligo.tokens.methods.plain:KeepAll*": "eligo.tokens.methods.keep_all:KeepAll*",
    "eligo.tokens.methods.plain:RandomTokens*": "eligo.tokens.methods.random:RandomTokens*",
    "eligo.tokens.training.config:DiscriminatorConfig*": "eligo.tokens.config:DiscriminatorConfig*",
    "eligo.tokens.training.config:LossesConfig*": "eligo.tokens.config:LossesConfig*",
    "eligo.tokens.training.config:MergerConfig*": "eligo.tokens.config:MergerConfig*",
    "eligo.tokens.training.config:OptimConfig*": "eligo.tokens.config:OptimConfig*",
    "eligo.tokens.training.config:PrunersConfig*": "eligo.tokens.config:PrunersConfig*",
    "eligo.tokens.training.config:TemperatureConfig*": "eligo.tokens.config:TemperatureConfig*",
    "eligo.tokens.training.config:TokensTrainConfig*": "eligo.tokens.config:TokensTrainConfig*",
    "eligo.tokens.training.inputs_config:HostConfig*": "eligo.tokens.config:HostConfig*",
    "eligo.tokens.training.inputs_config:LinesDataConfig*": "eligo.tokens.config:LinesDataConfig*",
    "eligo.tokens.training.inputs_config:RandomHostConfig*": (
        "eligo.tokens.config:RandomHostConfig*"
    ),
    "eligo.tokens.training.inputs_config:ScenesDataConfig*": (
        "eligo.tokens.config:ScenesDataConfig*"
    ),
    "eligo.tokens.training.inputs_config:VqaDataConfig*": "eligo.tokens.config:VqaDataConfig*",
    "eligo.tokens.training.inputs_config:_DataConfig*": "eligo.tokens.config:_DataConfig*",
    "eligo.tokens.training.inputs_config:_FilesConfig*": "eligo.tokens.config:_FilesConfig*",
    "eligo.cli.search:_Section*": "eligo.cli.registry:_SearchSection*",
    "eligo.train.search_config:RangeConfig*": "eligo.train.config:RangeConfig*",
    "eligo.train.search_config:SearchConfig*": "eligo.train.config:SearchConfig*",
}

MOVED: dict[str, dict[str, str]] = {
    "commands": {
        "demos *": "shots *",
        "demos bench*": "python -m benchmarks.shots.speed*",
        "demos exam*": "python -m benchmarks.shots.study*",
        "demos train-learner*": "python -m benchmarks.shots.train_learner*",
        "patches bench*": "python -m benchmarks.patches.speed*",
        "patches exam*": "python -m benchmarks.patches.study*",
        "pixels bench*": "python -m benchmarks.pixels.speed*",
        "pixels exam*": "python -m benchmarks.pixels.study*",
        "scenes evaluate-vlm*": "python -m benchmarks.scenes.evaluate_vlm*",
        "scenes stats*": "python -m benchmarks.scenes.stats*",
        "scenes train-vlm*": "python -m benchmarks.scenes.train_vlm*",
        "tokens exam*": "python -m benchmarks.tokens.study*",
    },
    "public": {
        "eligo.cli.live.live_tools": "eligo.cli.explorer.live_tools",
        "eligo.demos": "eligo.shots",
        "eligo.demos.BM25": "eligo.shots.BM25",
        "eligo.demos.BeamOracle": "eligo.shots.BeamOracle",
        "eligo.demos.BestFixed": "eligo.shots.BestFixed",
        "eligo.demos.DPP": "eligo.shots.DPP",
        "eligo.demos.FitConfig": "eligo.shots.FitConfig",
        "eligo.demos.GreedyOracle": "eligo.shots.GreedyOracle",
        "eligo.demos.HostGenerator": "eligo.shots.HostGenerator",
        "eligo.demos.HostScorer": "eligo.shots.HostScorer",
        "eligo.demos.KNN": "eligo.shots.KNN",
        "eligo.demos.LearnedSelector": "eligo.shots.LearnedSelector",
        "eligo.demos.Lesson": "eligo.shots.TeacherResult",
        "eligo.demos.MMR": "eligo.shots.MMR",
        "eligo.demos.PointerOutput": "eligo.shots.PointerOutput",
        "eligo.demos.PointerPrediction": "eligo.shots.PointerPrediction",
        "eligo.demos.PointerSelector": "eligo.shots.PointerSelector",
        "eligo.demos.PointerSelectorV0": "eligo.shots.PointerSelectorV0",
        "eligo.demos.PointerSelectorV0Config": "eligo.shots.PointerSelectorV0Config",
        "eligo.demos.PointerSelectorV1": "eligo.shots.PointerSelectorV1",
        "eligo.demos.PointerSelectorV1Config": "eligo.shots.PointerSelectorV1Config",
        "eligo.demos.PointerSelectorV2": "eligo.shots.PointerSelectorV2",
        "eligo.demos.PointerSelectorV2Config": "eligo.shots.PointerSelectorV2Config",
        "eligo.demos.PointerSelectorV3": "eligo.shots.PointerSelectorV3",
        "eligo.demos.PointerSelectorV3Config": "eligo.shots.PointerSelectorV3Config",
        "eligo.demos.Pool": "eligo.shots.Pool",
        "eligo.demos.PoolIndex": "eligo.shots.PoolIndex",
        "eligo.demos.PoolSelector": "eligo.shots.PoolSelector",
        "eligo.demos.Query": "eligo.shots.Query",
        "eligo.demos.Random": "eligo.shots.Random",
        "eligo.demos.Reader": "eligo.shots.Reader",
        "eligo.demos.Record": "eligo.shots.Record",
        "eligo.demos.Sampler": "eligo.shots.Sampler",
        "eligo.demos.SamplerConfig": "eligo.shots.SamplerConfig",
        "eligo.demos.Scorer": "eligo.shots.Scorer",
        "eligo.demos.StaticOracle": "eligo.shots.StaticOracle",
        "eligo.demos.Utility": "eligo.shots.Utility",
        "eligo.demos.UtilityTable": "eligo.shots.UtilityTable",
        "eligo.demos.ZeroShot": "eligo.shots.ZeroShot",
        "eligo.demos.beam_search": "eligo.shots.beam_search",
        "eligo.demos.build_model": "eligo.shots.build_model",
        "eligo.demos.build_model_v0": "eligo.shots.build_model_v0",
        "eligo.demos.build_model_v1": "eligo.shots.build_model_v1",
        "eligo.demos.build_model_v2": "eligo.shots.build_model_v2",
        "eligo.demos.build_model_v3": "eligo.shots.build_model_v3",
        "eligo.demos.embed_texts": "eligo.shots.embed_texts",
        "eligo.demos.embed_tokens": "eligo.shots.embed_tokens",
        "eligo.demos.index.Hits": "eligo.patches.index.Hits",
        "eligo.demos.index.PoolIndex": "eligo.shots.PoolIndex",
        "eligo.demos.load_selector": "eligo.shots.load_selector",
        "eligo.demos.num_calls": "eligo.shots.num_calls",
        "eligo.demos.read_texts": "eligo.shots.read_texts",
        "eligo.demos.rivals.BM25": "eligo.shots.BM25",
        "eligo.demos.rivals.BeamOracle": "eligo.shots.BeamOracle",
        "eligo.demos.rivals.BestFixed": "eligo.shots.BestFixed",
        "eligo.demos.rivals.DPP": "eligo.shots.DPP",
        "eligo.demos.rivals.GreedyOracle": "eligo.shots.GreedyOracle",
        "eligo.demos.rivals.KNN": "eligo.shots.KNN",
        "eligo.demos.rivals.MMR": "eligo.shots.MMR",
        "eligo.demos.rivals.Random": "eligo.shots.Random",
        "eligo.demos.rivals.StaticOracle": "eligo.shots.StaticOracle",
        "eligo.demos.rivals.Utility": "eligo.shots.Utility",
        "eligo.demos.rivals.UtilityTable": "eligo.shots.UtilityTable",
        "eligo.demos.rivals.ZeroShot": "eligo.shots.ZeroShot",
        "eligo.demos.teach_query": "eligo.shots.teach_query",
        "eligo.demos.text_pool": "eligo.shots.text_pool",
        "eligo.nn.as_exact_as": "eligo.nn.allow_tf32_for",
        "eligo.nn.watching": "eligo.nn.record_outputs",
        "eligo.patches.retrieval.Built": "eligo.patches.index.Built",
        "eligo.patches.retrieval.Calibration": "eligo.patches.index.Calibration",
        "eligo.patches.retrieval.Hits": "eligo.patches.index.Hits",
        "eligo.patches.retrieval.ImageFiles": "eligo.patches.index.ImageFiles",
        "eligo.patches.retrieval.IndexFolder": "eligo.patches.index.IndexFolder",
        "eligo.patches.retrieval.ScenePictures": "eligo.patches.index.ScenePictures",
        "eligo.patches.retrieval.Searcher": "eligo.patches.index.Searcher",
        "eligo.patches.retrieval.Source": "eligo.patches.index.Source",
        "eligo.patches.retrieval.TextLines": "eligo.patches.index.TextLines",
        "eligo.patches.retrieval.build_index": "eligo.patches.index.build_index",
        "eligo.patches.retrieval.calibrate": "eligo.patches.index.calibrate",
        "eligo.patches.retrieval.merge_hits": "eligo.patches.index.merge_hits",
    },
    "configs": {
        **_CLASSES,
        "eligo.demos.exam.config:ExamConfig arms*": "benchmarks.shots.config:StudyConfig variants*",
        "eligo.patches.exam.config:ExamConfig arms*": (
            "benchmarks.patches.study:StudyConfig variants*"
        ),
        "eligo.tokens.measure.exam_config:ExamConfig rivals": (
            "benchmarks.tokens.config:StudyConfig baselines"
        ),
    },
    "choices": {
        **_CLASSES,
        "eligo.demos.exam.config:ExamConfig task=demos.exam": (
            "benchmarks.shots.config:StudyConfig task=shots.study"
        ),
        "eligo.demos.exam.learner_config:LearnerConfig task=demos.train-learner": (
            "benchmarks.shots.config:LearnerConfig task=shots.train-learner"
        ),
        "eligo.demos.pipeline.config:DemosTrainConfig task=demos.train": (
            "eligo.shots.config:ShotsTrainConfig task=shots.train"
        ),
        "eligo.demos.teach.config:TeachConfig task=demos.teach": (
            "eligo.shots.config:TeachConfig task=shots.teach"
        ),
        "eligo.patches.exam.config:ExamConfig arms*": (
            "benchmarks.patches.study:StudyConfig variants*"
        ),
        "eligo.patches.exam.config:ExamConfig task=patches.exam": (
            "benchmarks.patches.study:StudyConfig task=patches.study"
        ),
        "eligo.pixels.exam.config:ExamConfig task=pixels.exam": (
            "benchmarks.pixels.variants:StudyConfig task=pixels.study"
        ),
        "eligo.tokens.measure.exam_config:ExamConfig task=tokens.exam": (
            "benchmarks.tokens.config:StudyConfig task=tokens.study"
        ),
    },
    "tasks": {
        "demos.*": "shots.*",
    },
    "kernels": {
        "triton: eligo.patches.kernels.fused:_best_cosines": (
            "triton: eligo.patches.kernels.triton_kernels:_best_cosines"
        ),
        "triton: eligo.patches.kernels.keeping:_keep_best": (
            "triton: eligo.patches.kernels.triton_kernels:_keep_best"
        ),
        "triton: eligo.pixels.model.kernels:_biases": "triton: eligo.pixels.model.kernels:_attend",
        "triton: eligo.pixels.model.kernels:_turned": "triton: eligo.pixels.model.kernels:_rotated",
    },
    "formats": {
        "read: flags of the guides for selectors": "read: flags of published selectors",
        "read: keys of the guide for tokens": "read: keys of the two-stage pruning design",
        "read: lessons of a teacher": "read: results of a teacher",
        "read: saved exhibit": "read: saved record of the explorer",
    },
    "models": {
        "demos_*": "shots_*",
    },
    "yamls": {
        "demos/*": "shots/*",
        "tokens/guide*": "tokens/two_stage*",
    },
    "outputs": {
        "demos *": "shots *",
        "demos train held_out.verdict": "shots train held_out.outcome",
        "scenes evaluate-vlm bar": "scenes evaluate-vlm target",
    },
    "tests": _TESTS["moved"],
}
"""Per section, old entry -> new entry."""

REMOVED: dict[str, dict[str, str]] = {
    "public": {
        "eligo.demos.Selector": "`PoolSelector` is the base class and was its only implementation.",
        "eligo.tokens.hosts.refuse_video": "It had one caller, which does the check itself.",
        "eligo.tokens.lmms_eval.manifest": (
            "It is `eligo.tokens.inference.lmms_eval.manifest`, in a module instead of a package."
        ),
        "eligo.tokens.methods.AnyMethod": "No config field used it.",
    },
    "tasks": {
        "demos.exam": (
            "The study or training is a script in benchmarks/, which needs no registered task."
        ),
        "demos.train-learner": (
            "The study or training is a script in benchmarks/, which needs no registered task."
        ),
        "patches.exam": (
            "The study or training is a script in benchmarks/, which needs no registered task."
        ),
        "pixels.exam": (
            "The study or training is a script in benchmarks/, which needs no registered task."
        ),
        "scenes.evaluate-vlm": (
            "The study or training is a script in benchmarks/, which needs no registered task."
        ),
        "scenes.stats": (
            "The study or training is a script in benchmarks/, which needs no registered task."
        ),
        "scenes.train-vlm": (
            "The study or training is a script in benchmarks/, which needs no registered task."
        ),
        "tokens.exam": (
            "The study or training is a script in benchmarks/, which needs no registered task."
        ),
    },
    "yamls": {
        "demos/exam*": (
            "Moved to the repository's benchmarks; the smoke test of the study reads it."
        ),
        "demos/learner*": (
            "Moved to the repository's benchmarks; the smoke test of the study reads it."
        ),
        "patches/exam*": (
            "Moved to the repository's benchmarks; the smoke test of the study reads it."
        ),
        "pixels/exam*": (
            "Moved to the repository's benchmarks; the smoke test of the study reads it."
        ),
        "scenes/vlm_*": (
            "Moved to the repository's benchmarks; the smoke test of the study reads it."
        ),
        "tokens/exam*": (
            "Moved to the repository's benchmarks; the smoke test of the study reads it."
        ),
    },
    "tests": _TESTS["removed"],
    "commands": {
        "patches index --check_data": (
            "Unreadable images are skipped and listed as they come: decoding all images twice, to "
            "know them before, took as long as the rest."
        ),
        "pixels bench --batch_size": "It is --batch, as in the other modes of this script.",
        "pixels bench --json": "The script always prints and writes JSON.",
        "pixels bench --model": "Speed depends on the size only: --size.",
        "pixels bench --num_words": "The script uses the number of words of the study.",
        "tokens bench --shape": (
            "Random weights of a shape serve our own tables: see python -m benchmarks.tokens.speed."
        ),
    },
    "configs": {
        "eligo.tokens.methods.attention:_MostAttended*": (
            "FastV and PyramidDrop share a function instead of a private base class."
        ),
    },
    "choices": {
        "eligo.tokens.methods.attention:_MostAttended*": (
            "FastV and PyramidDrop share a function instead of a private base class."
        ),
    },
    "outputs": {
        "demos evaluate answers*": "There is a table for each measure, with more selectors.",
        "demos evaluate ranking.note": "The published range is for the documented form only.",
        "demos train held_out.metric": "It is the worth of a pick, for lists of any length.",
    },
}
"""Per section, old entry -> why it is gone, in one sentence."""

_NEAREST = "Half are what nearest neighbours and MMR take from the whole pool, half are random."
_PATIENCE = "Early stopping ended trainings while the learning rate was high."
_RATE = "The default of `LearnedSelector.fit`; both learn from few records."
_SCORES = "By default a selector learns to predict the teacher's scores: better from few records."
_RESIDUAL = "Selectors begin as nearest neighbours, among the nearest candidates."
_TOKENS = "None: batches hold a number of tokens, not of prompts; a limit can still be given."
_WORKERS = "None: as many worker processes as the cores allow. Batches do not depend on them."
CHANGED: dict[str, dict[str, str]] = {
    "commands": {
        "demos bench --rounds": (
            "The two speed commands became one, with the default of the recorded results."
        ),
        "demos bench --suite": "Without a suite, all are run.",
        "demos evaluate --batch_size": _TOKENS,
        "demos evaluate --selector": _SCORES,
        "demos predict --selector": _SCORES,
        "demos train [CONFIG]": _SCORES,
        "tokens predict --image": "Either an image or a video (`--video`) is required.",
        "demos evaluate --shots": "The numbers of examples are chosen; it was the largest of all.",
        "demos predict --question": "A folder of queries (--data) may be given instead.",
        "patches index --num_workers": (
            "None: as many decoding processes as the cores allow; with Ray still one worker."
        ),
        "patches search TEXT": "Several texts may be given; none is an empty list.",
        "pixels bench --device": "One script measures all modes; its default is the CPU.",
        "pixels bench --size": "One script measures all modes; its default size is S.",
        "tokens bench --threads": "The default is that of torch, for any model and machine.",
        "tokens evaluate --questions": "Still 600 on scenes; all questions of a file.",
        "tokens predict --out": "Without a folder, no picture is written.",
        "tokens evaluate SOURCE": "A method, or the host alone, can be evaluated too.",
    },
    "configs": {
        "eligo.patches.exam.config:ExamConfig arms": "Our score is a variant, too.",
        "eligo.demos.data.sampler_config:SamplerConfig kind": _NEAREST,
        "eligo.demos.teach.config:TeachConfig sampler.kind": _NEAREST,
        "eligo.demos.hosts.config:DemosHostConfig batch_size": _TOKENS,
        "eligo.demos.teach.config:TeachConfig host.batch_size": _TOKENS,
        "eligo.demos.pipeline.config:DemosTrainConfig train.lr": _RATE,
        "eligo.demos.pipeline.config:SelectorTrainConfig lr": _RATE,
        "eligo.demos.learned.config:FitConfig patience": _PATIENCE,
        "eligo.demos.pipeline.config:DemosTrainConfig train.patience": _PATIENCE,
        "eligo.demos.pipeline.config:SelectorTrainConfig patience": _PATIENCE,
        "eligo.demos.learned.config:FitConfig lr": _SCORES,
        "eligo.demos.pipeline.config:DemosTrainConfig train.name": "It follows the model.",
        "eligo.tokens.measure.exam_config:ExamConfig rivals": "It is all methods: new ones too.",
        "eligo.demos.pipeline.config:SelectorTrainConfig name": "It follows the model.",
        "eligo.train.search_config:SearchConfig trials": (
            "It is still 20, unless the space has only lists: then each combination is tried once."
        ),
        "eligo.pixels.config:SideConfig learnable_temp": (
            "A shared base class with defaults replaced two classes."
        ),
        "eligo.pixels.config:SideConfig logit_init": (
            "A shared base class with defaults replaced two classes."
        ),
        "eligo.pixels.config:SideConfig use_cosine": (
            "A shared base class with defaults replaced two classes."
        ),
        "eligo.patches.data.config:KarpathyDataConfig num_workers": _WORKERS,
        "eligo.pixels.data.config:FilesConfig num_workers": _WORKERS,
        "eligo.pixels.data.config:JsonlDataConfig num_workers": _WORKERS,
        "eligo.pixels.data.config:NyuDataConfig num_workers": _WORKERS,
        "eligo.pixels.data.config:RoomsDataConfig num_workers": _WORKERS,
        "eligo.pixels.data.config:SunDataConfig num_workers": _WORKERS,
        "eligo.tokens.training.inputs_config:LinesDataConfig num_workers": _WORKERS,
        "eligo.tokens.training.inputs_config:VqaDataConfig num_workers": _WORKERS,
        "eligo.tokens.training.inputs_config:_FilesConfig num_workers": _WORKERS,
    },
    "yamls": {"tokens/sweep methods": "All methods are compared."}
    | {f"demos/{name} train.lr": _RATE for name in ("v0", "v1", "v2", "v2_gru", "v3")}
    | {f"demos/{name} train.patience": _PATIENCE for name in ("v0", "v1", "v2", "v2_gru", "v3")}
    | {"demos/vqa host.batch_size": _TOKENS}
    | {
        f"{name} data.num_workers": _WORKERS
        for name in (
            "patches/coco_vit224",
            "patches/f30k_dinov2",
            "patches/f30k_swin224",
            "patches/f30k_vit224",
            "pixels/nyu_b",
            "pixels/nyu_l",
            "pixels/nyu_s",
            "pixels/sun_b",
            "pixels/sun_l",
            "pixels/sun_s",
            "tokens/llava15",
        )
    }
    | {
        f"patches/{name} data.validation_images": (
            "The default of generated scenes leaked into files; all of split val are used."
        )
        for name in ("coco_vit224", "f30k_dinov2", "f30k_swin224", "f30k_vit224")
    },
    "outputs": {
        "pixels predict files*": "A picture of the confidence is written too.",
        "pixels predict, colours alone files*": "A picture of the confidence is written too.",
        "demos evaluate ranking*": _RESIDUAL,
        "demos predict *": _RESIDUAL,
        "demos train *": _RESIDUAL,
        "patches index KiB each": "A shard also lists contents and dates of its inputs.",
        "patches index, texts KiB each": "A shard also lists contents and dates of its inputs.",
    },
}
"""Per section, old entry -> why its value (a default, a file, an output) is another one now."""

VALUES: dict[str, str] = {
    "demos": "shots",
    "demos.exam": "shots.study",
    "demos.teach": "shots.teach",
    "demos.train": "shots.train",
    "demos.train-learner": "shots.train-learner",
    "demos/exam": "benchmarks/shots/study.yaml",
    "demos/learner": "benchmarks/shots/learner.yaml",
    "demos/v1": "shots/v1",
    "demos_v0": "shots_v0",
    "demos_v1": "shots_v1",
    "demos_v2": "shots_v2",
    "demos_v2_gru": "shots_v2_gru",
    "demos_v3": "shots_v3",
    "patches.exam": "patches.study",
    "patches/exam": "benchmarks/patches/study.yaml",
    "pixels.exam": "pixels.study",
    "pixels/exam": "benchmarks/pixels/study.yaml",
    "runs/demos_exam": "runs/shots_study",
    "runs/demos_v1": "runs/shots_v1",
    "runs/patches_exam": "runs/patches_study",
    "runs/pixels_exam": "runs/pixels_study",
    "runs/tokens_exam": "runs/tokens_study",
    "tokens.exam": "tokens.study",
    "tokens/exam": "benchmarks/tokens/study.yaml",
    "tokens_guide": "tokens_two_stage",
}
"""Text values that were renamed wherever they stand."""
