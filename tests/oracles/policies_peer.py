"""LeRobot's SmolVLA on our batches: python policies_peer.py ROOT prints the shapes that its own preparation makes."""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))


def smolvla(url):
    """No network of its own is made, which would need weights: its configuration and its preparation of inputs."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
    from lerobot.processor import TransitionKey
    from lerobot.processor.converters import batch_to_transition

    import loader

    state, action, camera = "observation.state", "action", "observation.images.cam_high"
    version = loader.Root(url).open("g1")
    view = version.select(f"{camera}.mp4", f"{state}.npy", f"{action}.npy")
    at = loader.delta_timestamps(view, {camera: [0.0], state: [0.0], action: [row / 30 for row in range(50)]})
    windows = loader.windows(view, anchor="action.npy", at=at, text=("subtask", "task"))
    plan = loader.plan({"g1": windows}, seed=1, global_batch=4)
    decode = {f"{camera}.mp4": loader.video(size=(96, 128))}
    with loader.Loader(plan, decode=decode, workers=0, steps=1) as batches:
        inputs = loader.to_lerobot(next(iter(batches)))
    shapes = {camera: (3, 96, 128), state: (26,)}
    kinds = {camera: FeatureType.VISUAL, state: FeatureType.STATE}
    config = SmolVLAConfig(
        input_features={name: PolicyFeature(kinds[name], shape) for name, shape in shapes.items()},
        output_features={action: PolicyFeature(FeatureType.ACTION, (26,))},
        device="cpu",
    )
    config.validate_features()
    policy = SmolVLAPolicy.__new__(SmolVLAPolicy)
    torch.nn.Module.__init__(policy)
    policy.config = config
    transition = batch_to_transition(inputs)
    images, masks = policy.prepare_images(inputs)
    print(
        json.dumps(
            {
                "chunk": list(config.action_delta_indices),
                "task": transition[TransitionKey.COMPLEMENTARY_DATA]["task"],
                "images": [list(image.shape) for image in images],
                "range": [float(images[0].min()) >= -1, float(images[0].max()) <= 1],
                "masks": [mask.tolist() for mask in masks],
                "state": list(policy.prepare_state(inputs).shape),
                "action": list(policy.prepare_action(inputs).shape),
                "is_pad": [str(inputs["action_is_pad"].dtype), list(inputs["action_is_pad"].shape)],
            }
        )
    )


smolvla(sys.argv[1])
